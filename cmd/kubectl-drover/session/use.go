// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

const (
	// hubItself is the value of --hub if "use --hub" is called without a value.
	hubItself = "-"
	// back is the argument that makes "use" return to the previous context.
	back = "-"
)

// NewUse returns the command "use".
func NewUse(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared, changes: true}
	hub := ""
	c := &cobra.Command{
		Use: "use {CLUSTER | - | --hub}", Short: "Make a Cluster, or the hub, the current context of kubectl",
		Long: `Make a Cluster, or the hub, the current context of kubectl. Your kubeconfig gets a context for it.
CLUSTER is a name, or WORKSPACE/NAME. "-" returns to the context before.

The contexts remember the hub: commands such as "kubectl drover agents" go on to reach it.

"use --hub=URL --context CONTEXT" says that URL is the hub's address, and CONTEXT the context of its
API server. From then on, the credentials of CONTEXT are also sent to URL. "use CLUSTER" prints this
command if the kubeconfig has no context of the hub that is known, and the API server of the context
before publishes the hub's address, in the ConfigMap drover-ca of the namespace drover-system. A
member can publish it, too: run the command only if you know that the context leads to the hub.`,
		Example: `  kubectl drover use prod-eu
  kubectl drover use -
  kubectl drover use --hub
  kubectl drover use --hub=https://hub.example.com --ca hub-ca.crt --context hub`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			cluster, err := o.parseUse(hub, args)
			switch {
			case err != nil:
				return err
			case o.Overrides.ClusterInfo.Server != "":
				return errors.New("use does not support --server: it works with contexts of the kubeconfig")
			case cluster == "":
				return o.useHub(c)
			case o.caFile != "", o.HubName != "" && o.Overrides.CurrentContext != "":
				return errors.New("with a Cluster, --ca and --context cannot be used with --hub: first run \"kubectl drover use " +
					"--hub=URL --ca FILE --context CONTEXT\", then use the Cluster")
			case cluster == back:
				return o.useBefore(c)
			}
			return o.useCluster(c, cluster)
		},
	}
	c.Flags().StringVarP(&o.namespace, "namespace", "n", "", "The default namespace of the context (default: unchanged)")
	c.Flags().StringVar(&hub, "hub", "", "Use the hub itself; with a Cluster, the URL of the Cluster's hub")
	c.Flags().Lookup("hub").NoOptDefVal = hubItself
	c.Flags().StringVar(&o.caFile, "ca", "", "With --hub=URL and --context, a file with the CA of the hub, in PEM")
	cli.Complete(c, "hub", o.CompleteHubs)
	cli.Complete(c, "ca", cli.CompleteFiles)
	c.ValidArgsFunction = cli.First(o.completeReachable(namesOf))
	return c
}

// parseUse returns the name of the Cluster to use, the constant back, or "" for the hub itself. It also sets HubName.
// This is necessary because the value of --hub is optional: a URL after --hub is parsed as an argument.
func (o *options) parseUse(hub string, args []string) (string, error) {
	if hub == hubItself {
		hub = ""
		if i := slices.IndexFunc(args, func(arg string) bool { return strings.Contains(arg, "://") }); i >= 0 {
			hub, args = args[i], slices.Delete(slices.Clone(args), i, i+1)
		} else if len(args) > 0 {
			return "", fmt.Errorf("use --hub without a Cluster, or name the hub as --hub=CONTEXT, but not both %s and --hub",
				cli.Visible(args[0]))
		}
		o.HubName = hub
		return strings.Join(args, " "), nil
	}
	if o.HubName = hub; hub != "" && len(args) == 0 {
		return "", nil
	}
	if len(args) != 1 || args[0] == "" {
		return "", errors.New("kubectl drover use requires a Cluster, or -, or --hub: \"kubectl drover clusters\" lists " +
			"the Clusters that you can reach")
	}
	return args[0], nil
}

func (o *options) useCluster(c *cobra.Command, cluster string) error {
	return o.withReachable(c, []string{cluster}, func(session *login.Session, list reachable) error {
		chosen, err := list.choose([]string{cluster})
		if err != nil {
			return err
		}
		origin := o.origin(c.Context(), session)
		name, err := o.merge(c.Context(), session, chosen, true)
		if err := switched(c, name, err); err != nil || origin == "" {
			return err
		}
		_, err = io.WriteString(c.ErrOrStderr(), adviceToRemember(origin, session))
		return err
	})
}

// adviceToRemember returns the command that makes a context the hub's context. The plugin does not do so without the
// user's consent: a member controls the addresses that its API server publishes, and could become the hub for all
// commands.
func adviceToRemember(context string, session *login.Session) string {
	ca, file := "", ""
	if len(session.CA) > 0 {
		ca, file = " --ca FILE", " FILE contains the hub's CA, as for \"kubectl drover login\"."
	}
	return fmt.Sprintf("The API server of context %s publishes the address of this hub. If you know that this context "+
		"leads to the hub and not to a member, commands for the hub can use it from now on: \"kubectl drover use "+
		"--hub=%s%s --context %s\".%s\n", cli.Plain(context), cli.Quoted(session.Issuer), ca, cli.Quoted(context), file)
}

func switched(c *cobra.Command, name string, err error) error {
	if err == nil {
		_, err = fmt.Fprintf(c.OutOrStdout(), "Switched to context %q.\n", name)
	}
	return err
}

// useHub makes the hub's context the current context, and marks it as the most recently selected hub.
func (o *options) useHub(c *cobra.Command) error {
	ctx, cancel := cli.Bounded(c.Context())
	defer cancel()
	raw, err := o.RawConfig()
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	name, err := o.HubContext(&raw)
	if err != nil {
		return err
	}
	if raw.Contexts[name] == nil {
		return fmt.Errorf("the kubeconfig has no context of the hub: select one with --context: %w", cli.ErrNoHub)
	}
	url, ca, err := o.proxyOf(&raw, name)
	if err != nil {
		return err
	}
	if url != "" || cli.MarkOf(&raw, name).Selected.IsZero() {
		if _, err := o.isHub(ctx, name); err != nil {
			return err
		}
	}
	return o.switchTo(c, name, func(mark *cli.Mark) {
		if mark.Selected = time.Now(); url != "" {
			if ca != nil || mark.URL != url {
				mark.CA = ca
			}
			mark.URL = url
		}
	})
}

// proxyOf returns the address and the CA of the hub's proxy that --hub assigns to a context. The address is empty
// unless the user specifies both a hub and a context.
func (o *options) proxyOf(raw *clientcmdapi.Config, name string) (url string, ca []byte, err error) {
	if o.Overrides.CurrentContext == "" || o.HubName == "" {
		if o.caFile != "" {
			return "", nil, errors.New("--ca requires --hub=URL and --context")
		}
		return "", nil, nil
	}
	if url, err = login.ParseURL(o.HubName); err != nil {
		return "", nil, err
	}
	if base, atHub := cli.HubBase(cli.ServerOf(raw, name)); atHub && base != url {
		return "", nil, fmt.Errorf("context %s leads to the hub %s, not to %s", cli.Visible(name), cli.Visible(base), url)
	}
	if o.caFile != "" {
		if ca, err = os.ReadFile(o.caFile); err != nil {
			return "", nil, fmt.Errorf("read the CA of the hub: %w", err)
		}
	}
	return url, ca, nil
}

// isHub returns a client for a context. It returns an error unless the context points to the API server of a hub.
func (o *options) isHub(ctx context.Context, name string) (*cli.Hub, error) {
	h, err := o.at(name)
	if err != nil {
		return nil, err
	}
	_, err = h.RESTMapper().RESTMapping(v1.GroupVersion.WithKind("Cluster").GroupKind())
	if err != nil {
		return nil, fmt.Errorf("context %s does not lead to a hub: %w: select the hub with --context", cli.Plain(name), err)
	}
	return h, ctx.Err()
}

// at returns a client for one context.
func (o *options) at(name string) (*cli.Hub, error) {
	flags := *o.Options
	flags.HubName, flags.Overrides.CurrentContext = "", name
	return flags.Hub()
}

// useBefore switches back to the context that was current before the last "use".
func (o *options) useBefore(c *cobra.Command) error {
	config, err := o.Loading.GetStartingConfig()
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	return o.switchTo(c, cli.MarkOf(config, config.CurrentContext).Previous, func(*cli.Mark) {})
}

// switchTo makes a context the current context. It records the previous context in the new context's mark. It reads the
// kubeconfig again to preserve changes that other programs have made in the meantime.
func (o *options) switchTo(c *cobra.Command, name string, change func(*cli.Mark)) error {
	config, err := o.Loading.GetStartingConfig()
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	if config.Contexts[name] == nil {
		return errors.New("there is no context to return to: \"kubectl config get-contexts\" lists the contexts")
	}
	mark := cli.MarkOf(config, name)
	change(&mark)
	if config.CurrentContext != name {
		mark.Previous = config.CurrentContext
	}
	if err := cli.SetMark(config, name, mark); err != nil {
		return err
	}
	config.CurrentContext = name
	return switched(c, name, o.write(config))
}

func (o *options) write(config *clientcmdapi.Config) error {
	if err := clientcmd.ModifyConfig(o.Loading, *config, true); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// merge adds contexts to the user's kubeconfig and returns the name of the last context. If current is set, the last
// context becomes the current context.
func (o *options) merge(ctx context.Context, session *login.Session, clusters []reachableCluster,
	current bool) (string, error) {
	last := len(clusters) - 1
	ownAddress := current && last >= 0 && clusters[last].answers(ctx, directToken(session, clusters[last]))
	config, err := o.Loading.GetStartingConfig() // read again to preserve changes by other programs
	if err != nil {
		return "", fmt.Errorf("read kubeconfig: %w", err)
	}
	hub, before := "", config.CurrentContext
	if len(clusters) > 0 {
		if hub, err = rememberHub(config, session, current); err != nil {
			return "", err
		}
	}
	name, direct := "", ""
	for _, cluster := range clusters {
		name = addContext(config, session, cluster)
		direct = addDirect(config, session, cluster, name)
		for _, added := range []string{name, direct} {
			if added == "" {
				continue
			}
			context := config.Contexts[added]
			context.Namespace = cmp.Or(o.namespace, context.Namespace)
			mark := cli.Mark{
				URL: session.Issuer, Workspace: cluster.Namespace, Hub: hub, Previous: cli.MarkOf(config, added).Previous,
			}
			if current && before != added {
				mark.Previous = before
			}
			if err := cli.SetMark(config, added, mark); err != nil {
				return "", err
			}
		}
	}
	if ownAddress && direct != "" {
		name = direct
	}
	if current {
		config.CurrentContext = name
	}
	return name, o.write(config)
}

// rememberHub returns the context in the kubeconfig that points to the API server of a session's hub, or "" if there is
// none. If selected is set, it marks the context as the most recently selected hub. It does not mark a context if it is
// uncertain which hub the context belongs to.
func rememberHub(config *clientcmdapi.Config, session *login.Session, selected bool) (string, error) {
	name, err := cli.NamedHub(config, session.Issuer)
	if err != nil || name == session.Issuer || cli.BaseOf(config, name) != session.Issuer {
		return "", nil // the context belongs to a different or an unknown hub
	}
	if !selected {
		return name, nil
	}
	return name, markHub(config, name, session)
}

// markHub marks a context as the most recently selected hub.
func markHub(config *clientcmdapi.Config, name string, session *login.Session) error {
	mark := cli.MarkOf(config, name)
	mark.Selected, mark.URL, mark.CA = time.Now(), session.Issuer, session.CA
	return cli.SetMark(config, name, mark)
}

// probeLimit is how long a hub's API server may take to respond. If it takes longer, the plugin does not add a context
// for it.
const probeLimit = 3 * time.Second

// loginContext adds a context for the hub's own API to the kubeconfig if the hub's API server accepts the user's
// tokens. It marks the context as the most recently selected hub.
func (o *options) loginContext(ctx context.Context, session *login.Session) error {
	session.UserAgent = o.UserAgent()
	path := cli.PathLocal + "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	review := map[string]string{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	accepted := callHub(ctx, session, http.MethodPost, path, review, &struct{}{}) == nil
	config, err := o.Loading.GetStartingConfig()
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	name, err := rememberHub(config, session, true)
	if err != nil {
		return err
	}
	if host := strings.TrimPrefix(session.Issuer, "https://"); name == "" && accepted {
		name = "hub@" + host
		setContext(config, name, entry{
			user: "drover@" + host, server: session.Issuer + cli.PathLocal, ca: session.CA,
			exec: execCredential("get-token", "--hub", session.Issuer),
		})
		if err := markHub(config, name, session); err != nil {
			return err
		}
	}
	if renewed := renewCA(config, session); name == "" && !renewed {
		return nil
	}
	return o.write(config)
}

// renewCA updates the hub's CA in all contexts that the plugin created for access through the hub. It reports whether
// it found any such contexts.
func renewCA(config *clientcmdapi.Config, session *login.Session) (found bool) {
	user := "drover@" + strings.TrimPrefix(session.Issuer, "https://")
	for name, context := range config.Contexts {
		base, atHub := cli.HubBase(cli.ServerOf(config, name))
		if context.AuthInfo == user && atHub && base == session.Issuer {
			config.Clusters[context.Cluster].CertificateAuthorityData, found = session.CA, true
		}
	}
	return found
}
