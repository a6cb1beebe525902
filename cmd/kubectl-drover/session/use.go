// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

const (
	// hubItself is the value of "use --hub" without a hub.
	hubItself = "-"
	// back is the argument with which "use" returns to the context before.
	back = "-"
)

// NewUse returns the command "use".
func NewUse(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	hub := ""
	c := &cobra.Command{
		Use: "use {CLUSTER | - | --hub}", Short: "Make a Cluster, or the hub, the current context of kubectl",
		Long: `Make a Cluster, or the hub, the current context of kubectl. Your kubeconfig gets a context for it.
CLUSTER is a name, or WORKSPACE/NAME. "-" returns to the context before.

The contexts remember the hub: commands such as "kubectl drover agents" go on to reach it.`,
		Example: `  kubectl drover use prod-eu
  kubectl drover use -
  kubectl drover use --hub`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			cluster, err := o.parseUse(hub, args)
			switch {
			case err != nil:
				return err
			case cluster == "":
				return o.useHub(c)
			case cluster == back:
				return o.useBefore(c)
			}
			return o.useCluster(c, cluster)
		},
	}
	c.Flags().StringVarP(&o.namespace, "namespace", "n", "", "The default namespace of the context (default: unchanged)")
	c.Flags().StringVar(&hub, "hub", "", "Use the hub itself; with a Cluster, the URL of the Cluster's hub")
	c.Flags().Lookup("hub").NoOptDefVal = hubItself
	c.Flags().StringVar(&o.caFile, "ca", "", "With --hub URL and without \"login\", a file with the CA of the hub, in "+
		"PEM")
	c.ValidArgsFunction = o.completeReachable(namesOf)
	return c
}

// parseUse returns the Cluster to use, or back, or "" for the hub itself. It sets HubName. The value of --hub is
// optional, so a URL after it is an argument.
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
		name, err := o.merge(c.Context(), session, chosen, true)
		return switched(c, name, err)
	})
}

func switched(c *cobra.Command, name string, err error) error {
	if err == nil {
		_, err = fmt.Fprintf(c.OutOrStdout(), "Switched to context %q.\n", name)
	}
	return err
}

// useHub makes the hub's context the current one, and remembers it.
func (o *options) useHub(c *cobra.Command) error {
	ctx, cancel := cli.Bounded(c.Context())
	defer cancel()
	config, err := o.Loading.GetStartingConfig()
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	name, err := o.HubContext(config)
	if err != nil {
		return err
	}
	context := config.Contexts[name]
	if context == nil {
		return fmt.Errorf("the kubeconfig has no context of the hub: select one with --context: %w", cli.ErrNoHub)
	}
	mark := cli.MarkOf(context)
	if mark.Selected.IsZero() {
		if err := o.isHub(ctx, name); err != nil {
			return err
		}
	}
	mark.Selected = time.Now()
	return o.switchTo(c, config, name, mark)
}

// isHub returns an error unless a context points to the API server of a hub.
func (o *options) isHub(ctx context.Context, name string) error {
	h, err := o.at(name)
	if err != nil {
		return err
	}
	_, err = h.RESTMapper().RESTMapping(v1.GroupVersion.WithKind("Cluster").GroupKind())
	if err != nil {
		return fmt.Errorf("context %s does not lead to a hub: %w: select the hub with --context", cli.Plain(name), err)
	}
	return ctx.Err()
}

// at returns a client for one context.
func (o *options) at(name string) (*cli.Hub, error) {
	flags := *o.Options
	flags.HubName, flags.Overrides.CurrentContext = "", name
	return flags.Hub()
}

// useBefore returns to the context from which the last "use" came.
func (o *options) useBefore(c *cobra.Command) error {
	config, err := o.Loading.GetStartingConfig()
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	name := cli.MarkOf(config.Contexts[config.CurrentContext]).Previous
	if config.Contexts[name] == nil {
		return errors.New("there is no context to return to: \"kubectl config get-contexts\" lists the contexts")
	}
	return o.switchTo(c, config, name, cli.MarkOf(config.Contexts[name]))
}

// switchTo makes a context the current one, and gives it a mark that remembers the one before.
func (o *options) switchTo(c *cobra.Command, config *clientcmdapi.Config, name string, mark cli.Mark) error {
	if config.CurrentContext != name {
		mark.Previous = config.CurrentContext
	}
	if err := cli.SetMark(config.Contexts[name], mark); err != nil {
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
	config, err := o.Loading.GetStartingConfig()
	if err != nil {
		return "", fmt.Errorf("read kubeconfig: %w", err)
	}
	hub, before := "", config.CurrentContext
	if len(clusters) > 0 {
		hub = o.rememberHub(ctx, config, session, clusters[0])
	}
	name := ""
	for _, cluster := range clusters {
		name = addContext(config, session, cluster)
		direct := addDirect(config, session, cluster, name)
		for _, added := range []string{name, direct} {
			if added == "" {
				continue
			}
			context := config.Contexts[added]
			context.Namespace = cmp.Or(o.namespace, context.Namespace)
			mark := cli.MarkOf(context)
			mark.Hub = cmp.Or(hub, mark.Hub)
			if current && before != added {
				mark.Previous = before
			}
			if err := cli.SetMark(context, mark); err != nil {
				return "", err
			}
		}
		if current && cluster.answers(ctx, directToken(session, cluster)) && direct != "" {
			name = direct
		}
	}
	if current {
		config.CurrentContext = name
	}
	return name, o.write(config)
}

// probeLimit is how long a hub's API server may take to answer before the plugin does not remember it.
const probeLimit = 3 * time.Second

// rememberHub marks and returns the kubeconfig context that points to the API server of a session's hub, or returns "".
// A context that was not marked before must point to a hub that has the Cluster.
func (o *options) rememberHub(ctx context.Context, config *clientcmdapi.Config, session *login.Session,
	c reachableCluster) string {
	name, known := "", false
	if session.User != "" {
		p, err := o.plain()
		if err != nil {
			return ""
		}
		name, known = p.context, true
	} else if name, known = o.hubOf(config, session.Issuer); name == "" {
		return ""
	}
	if !known {
		ctx, cancel := context.WithTimeout(ctx, probeLimit)
		defer cancel()
		h, err := o.at(name)
		if err != nil || h.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Name}, &v1.Cluster{}) != nil {
			return ""
		}
	}
	mark := cli.MarkOf(config.Contexts[name])
	mark.Selected, mark.URL, mark.CA = time.Now(), session.Issuer, session.CA
	if cli.SetMark(config.Contexts[name], mark) != nil {
		return ""
	}
	return name
}

// hubOf returns the context that is known, or may turn out, to lead to the API server of a hub.
func (o *options) hubOf(config *clientcmdapi.Config, issuer string) (name string, known bool) {
	flags := *o.Options
	flags.HubName = issuer
	if name, err := flags.HubContext(config); err == nil && flags.Overrides.CurrentContext == "" {
		return name, true
	}
	flags.HubName = ""
	name, err := flags.HubContext(config)
	if err != nil || config.Contexts[name] == nil || cli.BaseOf(config, name) != "" {
		return "", false // of another hub
	}
	return name, false
}

// loginContext adds a context for the hub's own API to the kubeconfig if the hub's API server accepts the user's
// tokens, and remembers it.
func (o *options) loginContext(ctx context.Context, session *login.Session) error {
	config, err := o.Loading.GetStartingConfig()
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	name, known := o.hubOf(config, session.Issuer)
	if !known {
		session.UserAgent = o.UserAgent()
		path := cli.PathLocal + "/apis/authentication.k8s.io/v1/selfsubjectreviews"
		review := map[string]string{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
		ctx, cancel := context.WithTimeout(ctx, probeLimit)
		defer cancel()
		if callHub(ctx, session, http.MethodPost, path, review, &struct{}{}) != nil {
			return nil
		}
		host := strings.TrimPrefix(session.Issuer, "https://")
		name = "hub@" + host
		setContext(config, name, "drover@"+host, session.Issuer+cli.PathLocal, session.CA,
			execCredential("get-token", "--hub", session.Issuer))
	}
	mark := cli.MarkOf(config.Contexts[name])
	mark.Selected, mark.URL, mark.CA = time.Now(), session.Issuer, session.CA
	if err := cli.SetMark(config.Contexts[name], mark); err != nil {
		return err
	}
	return o.write(config)
}
