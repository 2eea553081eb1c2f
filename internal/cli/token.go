package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstrap "k8s.io/cluster-bootstrap/token/util"

	"github.com/clusterd/clusterd/internal/atomicfile"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/join"
	"github.com/clusterd/clusterd/internal/token"
)

const (
	tokenLife = 24 * time.Hour
	// forgetTokens is for how long a token that has expired is still listed, and its use answered with that.
	forgetTokens   = 7 * 24 * time.Hour
	tokenAPILimit  = 30 * time.Second
	kubeconfigFlag = "kubeconfig"
)

// Tokens is what the token commands know of this machine's server.
type Tokens struct {
	// Setting is what the server would take an option to be.
	Setting func(name string) string
}

// TokenCommand has the commands that work with the tokens of joining nodes.
func TokenCommand(t Tokens) *cli.Command {
	kubeconfig := func() cli.Flag {
		return &cli.StringFlag{Name: kubeconfigFlag, TakesFile: true, EnvVars: []string{kubeconfigEnv}, DefaultText: "the one that clusterd server writes",
			Usage: "`FILE` with the administrator's access"}
	}
	return &cli.Command{
		Name:      "token",
		Usage:     "work with the tokens by which machines join as nodes",
		UsageText: "clusterd token COMMAND",
		Description: "A token lets its holder make a machine a node: clusterd agent --join https://SERVER:6443 --token TOKEN. It carries the\n" +
			"hash of the cluster's authority, so that the machine knows the server too. The server's own token, which does not end,\n" +
			"is in server/node-token in its data directory. Nodes that have joined need no token any more.",
		Subcommands: []*cli.Command{
			{
				Name: "create", Usage: "make a token and print it",
				Flags: []cli.Flag{
					kubeconfig(),
					&cli.DurationFlag{Name: "ttl", Value: tokenLife, Usage: "how `LONG` it is good, such as 15m or 24h; 0 is without end"},
					&cli.StringFlag{Name: "description", Usage: "`TEXT` that says what it is for"},
					&cli.StringSliceFlag{Name: "replace", Usage: "let a machine take the place of the node `NAME`"},
				},
				Action: t.create,
			},
			{Name: "list", Aliases: []string{"ls"}, Usage: "list the tokens, without their secrets", Flags: []cli.Flag{kubeconfig()}, Action: t.list},
			{Name: "delete", Usage: "take tokens back", ArgsUsage: "ID...", Flags: []cli.Flag{kubeconfig()}, Action: t.delete},
			{
				Name: "rotate", Usage: "give the server another token of its own and print it; the earlier one lets nobody in any more",
				Flags: []cli.Flag{kubeconfig(), dataDirFlag()}, Action: t.rotate,
			},
		},
	}
}

// client is the administrator's.
func (t Tokens) client(c *cli.Context) (clientset.Interface, error) {
	path := c.String(kubeconfigFlag)
	if path == "" {
		path = t.Setting("write-kubeconfig")
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w: run this on a server, as root, or give --%s", path, err, kubeconfigFlag)
	}
	config.Timeout = tokenAPILimit
	return clientset.NewForConfig(config)
}

func (t Tokens) create(c *cli.Context) error {
	if err := NoArguments(c); err != nil {
		return err
	}
	g := join.Grant{Description: c.String("description"), Replaces: c.StringSlice("replace")}
	switch ttl := c.Duration("ttl"); {
	case ttl < 0:
		return UsageErrorf(c, "--ttl: %s is less than nothing", ttl)
	case ttl > 0:
		g.Expires = time.Now().Add(ttl)
	}
	for _, name := range g.Replaces {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			return UsageErrorf(c, "--replace: %q is not the name of a node", name)
		}
	}
	client, err := t.client(c)
	if err != nil {
		return err
	}
	if _, err := join.Tokens(c.Context, client, forgetTokens); err != nil {
		return err
	}
	text, err := bootstrap.GenerateBootstrapToken()
	if err != nil {
		return fmt.Errorf("make a token: %w", err)
	}
	made := join.Split(text)
	if made.CAHash, err = caHash(c.Context, client); err != nil {
		return err
	}
	if _, err := client.CoreV1().Secrets(metav1.NamespaceSystem).Create(c.Context, g.Secret(made, join.TokenCreated), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make the token known: %w", err)
	}
	fmt.Fprintln(c.App.Writer, made)
	return nil
}

// caHash is that of the cluster's authority, from the cluster itself.
func caHash(ctx context.Context, client clientset.Interface) (string, error) {
	m, err := client.CoreV1().ConfigMaps(join.InfoNamespace).Get(ctx, join.InfoName, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read about the cluster: %w", err)
	}
	info, err := join.Decode([]byte(m.Data[join.InfoKey]))
	if err != nil {
		return "", err
	}
	return info.CAHash()
}

func (t Tokens) list(c *cli.Context) error {
	if err := NoArguments(c); err != nil {
		return err
	}
	client, err := t.client(c)
	if err != nil {
		return err
	}
	secrets, err := join.Tokens(c.Context, client, forgetTokens)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tEXPIRES\tREPLACES\tDESCRIPTION")
	for _, s := range secrets {
		g, err := join.GrantOf(&s)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Data[bootstrapapi.BootstrapTokenIDKey], expiry(g), strings.Join(g.Replaces, ","), g.Description)
	}
	return flush(w)
}

func flush(w *tabwriter.Writer) error {
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the tokens: %w", err)
	}
	return nil
}

func expiry(g join.Grant) string {
	switch {
	case g.Expires.IsZero():
		return "never"
	case g.Expired(time.Now()):
		return "expired"
	}
	return g.Expires.UTC().Format(time.RFC3339)
}

func (t Tokens) delete(c *cli.Context) error {
	if c.NArg() == 0 {
		return UsageErrorf(c, "delete needs the ID of a token, as clusterd token list shows it")
	}
	client, err := t.client(c)
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range c.Args().Slice() {
		errs = append(errs, deleteToken(c.Context, c.App.Writer, client, id))
	}
	return errors.Join(errs...)
}

// deleteToken takes a whole token as well as its ID.
func deleteToken(ctx context.Context, w io.Writer, client clientset.Interface, id string) error {
	if whole, err := join.Parse(id); err == nil {
		id = whole.ID
	}
	id, _, _ = strings.Cut(id, ".")
	if !bootstrap.IsValidBootstrapTokenID(id) {
		return errors.New("delete token: what was given is not an ID such as abc123")
	}
	secrets := client.CoreV1().Secrets(metav1.NamespaceSystem)
	s, err := secrets.Get(ctx, join.SecretName(id), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("delete token %s: there is none with this ID", id)
	case err != nil:
		return fmt.Errorf("delete token %s: %w", id, err)
	case s.Labels[join.TokenLabel] == join.TokenServer:
		return fmt.Errorf("delete token %s: it is the server's own, which clusterd token rotate replaces", id)
	}
	if err := secrets.Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete token %s: %w", id, err)
	}
	fmt.Fprintf(w, "token %s deleted\n", id)
	return nil
}

func (t Tokens) rotate(c *cli.Context) error {
	if err := NoArguments(c); err != nil {
		return err
	}
	for _, option := range []string{"token", "token-file"} {
		if t.Setting(option) != "" && t.Setting("join") == "" { // of a further server it is what has let it in
			return fmt.Errorf("the server's token is set in its configuration (%s): change it there and start the server again", option)
		}
	}
	root := c.String("data-dir")
	if root == "" {
		root = t.Setting("data-dir")
	}
	dir, err := datadir.New(root)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir.ServerToken()); err != nil {
		return fmt.Errorf("rotate the server's token: %w: run this on the server, as root", err)
	}
	client, err := t.client(c)
	if err != nil {
		return err
	}
	hash, err := caHash(c.Context, client)
	if err != nil {
		return err
	}
	secret := rand.Text()
	next := join.Split(secret)
	next.CAHash = hash
	// The file first: the server makes what is in it known, now or at its next start.
	if err := token.Ensure(dir.ServerToken(), secret); err != nil {
		return err
	}
	if err := atomicfile.WriteDurable(dir.NodeToken(), 0o600, []byte(next.String()+"\n")); err != nil {
		return err
	}
	if err := join.WriteServerToken(c.Context, client, next); err != nil {
		return err
	}
	if err := awaitServers(c.Context, dir, secret); err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, next)
	return nil
}

// serversTimeout is how long the server has to make a token known to the others, before it must not be stopped.
const serversTimeout = 30 * time.Second

// awaitServers waits until the server has told the other servers, where there may be some: one that is started again before
// takes what they have for newer.
func awaitServers(ctx context.Context, dir datadir.Dir, secret string) error {
	ctx, cancel := context.WithTimeout(ctx, serversTimeout)
	defer cancel()
	for {
		told, err := os.ReadFile(dir.ServerJoinToken())
		if errors.Is(err, fs.ErrNotExist) || strings.HasSuffix(strings.TrimSpace(string(told)), "::"+secret) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("rotate the server's token: nodes have to show the new one in server/node-token from now on, but the other servers are not told: look at the log of the server, and run this again")
		case <-time.After(100 * time.Millisecond):
		}
	}
}
