package cli_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// completions are command lines whose last word is completed, and words that have to be, or may not be, among the candidates.
var completions = []struct{ line, want, not string }{
	{"clusterd ", "server", "--node-name"},
	{"clusterd ser", "server", ""},
	{"clusterd server --no", "--node-name", ""},
	{"clusterd images ", "import", "server"},
	{"clusterd completion ", "fish", "server"},
	{"clusterd kubectl get pods --outp", "--output", ""},
	{"clusterd kubectl conf", "config", ""},
}

// shell is a program that sources clusterd's completion and prints the candidates for $LINE.
var shells = map[string]string{
	"bash": `source <(clusterd completion bash)
		read -ra COMP_WORDS <<<"$LINE"; [[ $LINE == *" " ]] && COMP_WORDS+=("")
		COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE=$LINE COMP_POINT=${#LINE}
		_clusterd; printf '%s\n' "${COMPREPLY[@]}"`,
	"zsh": `compdef() { :; }; source <(clusterd completion zsh)
		compadd() { local name=${@[-1]}; print -l -- ${(P)name}; }; _files() { :; }
		words=(${=LINE}); [[ $LINE == *" " ]] && words+=(""); CURRENT=${#words}
		_clusterd`,
	"fish": `clusterd completion fish | source; complete -C "$LINE"`,
}

func TestCompletion(t *testing.T) {
	dir := filepath.Dir(program(t))
	for name, script := range shells {
		t.Run(name, func(t *testing.T) {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Skip(err)
			}
			for _, row := range completions {
				env := []string{"PATH=" + dir + ":/usr/bin:/bin", "LINE=" + row.line, "HOME=" + t.TempDir()}
				out, errs, _ := execute(t, env, path, "-c", script)
				found := map[string]bool{}
				for line := range strings.Lines(out) {
					word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
					found[strings.TrimSuffix(word, "=")] = true
				}
				if !found[row.want] || row.not != "" && found[row.not] {
					t.Errorf("%q: want %s, not %s, got\n%s%s", row.line, row.want, row.not, out, errs)
				}
			}
		})
	}
}
