package removal

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/clusterd/clusterd/internal/ledger"
)

// kubePrefix begins the names of the chains that the kubelet and kube-proxy make with iptables.
const kubePrefix = "KUBE-"

// filterState has the tables and chains of nftables, by the names that the ledger gives them.
func filterState() (map[string]bool, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for name, family := range families {
		tables, err := c.ListTablesOfFamily(family)
		if err != nil {
			return nil, fmt.Errorf("list the tables of the packet filter: %w", err)
		}
		for _, t := range tables {
			has[name+" "+t.Name] = true
		}
		chains, err := c.ListChainsOfTableFamily(family)
		if err != nil {
			return nil, fmt.Errorf("list the chains of the packet filter: %w", err)
		}
		for _, chain := range chains {
			has[name+" "+chain.Table.Name+" "+chain.Name] = true
		}
	}
	return has, nil
}

// removeTables removes the tables that are clusterd's, and of those of iptables what is empty now.
func (m Machine) removeTables() error {
	names := m.Ledger.Names(ledger.Table)
	bases := append(m.Ledger.Names(ledger.Chain), m.Ledger.Names(ledger.BaseTable)...) // chains before what they are in
	if len(names)+len(bases) == 0 {
		return nil
	}
	has, err := filterState()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if has[name] {
			errs = append(errs, removeTable(name))
		}
	}
	for _, name := range bases {
		if has[name] {
			errs = append(errs, removeEmpty(name))
		}
	}
	return errors.Join(errs...)
}

func removeTable(name string) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	family, table, _ := strings.Cut(name, " ")
	c.DelTable(&nftables.Table{Family: families[family], Name: table})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove table %s: %w", name, err)
	}
	return nil
}

// removeEmpty removes a chain without rules that lets everything through, or a table without chains.
func removeEmpty(name string) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	words := strings.Fields(name)
	table := &nftables.Table{Family: families[words[0]], Name: words[1]}
	if len(words) == 2 {
		chains, err := c.ListChainsOfTableFamily(table.Family)
		used := slices.ContainsFunc(chains, func(chain *nftables.Chain) bool { return chain.Table.Name == table.Name })
		if err != nil || used {
			return err
		}
		return removeTable(name)
	}
	chain, err := c.ListChain(table, words[2])
	if err != nil {
		return fmt.Errorf("look at chain %s: %w", name, err)
	}
	rules, err := c.GetRules(table, chain)
	if err != nil {
		return fmt.Errorf("list the rules of chain %s: %w", name, err)
	}
	if len(rules) > 0 || chain.Policy != nil && *chain.Policy != nftables.ChainPolicyAccept {
		return nil
	}
	chain.Table = table
	c.DelChain(chain)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove chain %s: %w", name, err)
	}
	return nil
}

// saveRules is what iptables-save, or that of IPv6, prints.
func saveRules(tool string) (string, error) {
	out, err := exec.Command(tool + "-save").Output()
	return string(out), err
}

// removeRules removes the chains of the kubelet and kube-proxy from iptables, with the rules that lead to them.
func (m Machine) removeRules() error {
	var errs []error
	for _, tool := range m.Ledger.Names(ledger.Rules) {
		rules, err := saveRules(tool)
		if errors.Is(err, exec.ErrNotFound) {
			continue // its rules can only be those of nftables then, whose tables go
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("list the rules of %s: %w", tool, err))
			continue
		}
		script := undo(rules)
		if script == "" {
			continue
		}
		restore := exec.Command(tool+"-restore", "--noflush", "--wait", "30")
		restore.Stdin = strings.NewReader(script)
		if out, err := restore.CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("remove the rules of %s: %w: %s", tool, err, bytes.TrimSpace(out)))
		}
	}
	return errors.Join(errs...)
}

// quoted is a comment, in which anything can be.
var quoted = regexp.MustCompile(`"(\\.|[^"\\])*"`)

// leadsToKube is whether a rule jumps or goes to one of Kubernetes' chains.
func leadsToKube(rule string) bool {
	rule = quoted.ReplaceAllString(rule, "")
	return strings.Contains(rule, " -j "+kubePrefix) || strings.Contains(rule, " -g "+kubePrefix)
}

// undo makes of what is saved the input of iptables-restore that removes Kubernetes' chains and the rules that lead to
// them. To declare a chain empties it, and only empty chains to which nothing leads can be removed.
func undo(saved string) string {
	var script strings.Builder
	var table string
	var empty, drop, remove []string
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table, empty, drop, remove = line, nil, nil, nil
		case strings.HasPrefix(line, ":"+kubePrefix):
			name, _, _ := strings.Cut(line[1:], " ")
			empty, remove = append(empty, ":"+name+" - [0:0]"), append(remove, "-X "+name)
		case strings.HasPrefix(line, "-A "+kubePrefix):
		case strings.HasPrefix(line, "-A ") && leadsToKube(line):
			drop = append(drop, "-D "+strings.TrimPrefix(line, "-A "))
		case line == "COMMIT" && len(empty) > 0:
			lines := slices.Concat([]string{table}, empty, drop, remove, []string{"COMMIT", ""})
			script.WriteString(strings.Join(lines, "\n"))
		}
	}
	return script.String()
}
