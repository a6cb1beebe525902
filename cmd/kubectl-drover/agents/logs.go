// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/protocol"
)

// maxLine is the maximum length of a log line, in bytes. The command stops at a longer line.
const maxLine = 1 << 20

// maxPods is the maximum number of pods whose logs are printed. An agent has at most five replicas, but each node may have
// a node agent.
const maxPods = 20

// logs implements the command "logs agent".
type logs struct {
	*cli.Options
	cluster, memberContext string
	follow, previous       bool
	tail                   int64
	since                  time.Duration
}

// NewLogs returns the command "logs".
func NewLogs(shared *cli.Options) *cobra.Command {
	c := &cobra.Command{Use: "logs", Short: "Print the log of a Cluster's agent"}
	o := &logs{Options: shared}
	agent := &cobra.Command{
		Use: "agent -c CLUSTER", Short: "Print the log of a Cluster's agent", Args: oneFlag,
		Long: `Print the log of a Cluster's agent.

The log is read through the hub with your own rights in the member: list on pods and get on
pods/log in the namespace drover-agent, which the role cluster-owner includes. While the agent is
not connected, use --member-context with a context that connects directly to the member. The logs
of at most 20 pods are printed.`,
		Example: "  kubectl drover logs agent -c prod-eu -w team-a --tail 20\n" +
			"  kubectl drover logs agent --member-context prod-eu-admin --follow",
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c) },
	}
	flags := agent.Flags()
	flags.StringVarP(&o.cluster, "cluster", "c", "", "The Cluster whose agent is meant, as NAME or WORKSPACE/NAME")
	flags.BoolVarP(&o.follow, "follow", "f", false, "Print new lines until you interrupt the command")
	flags.BoolVarP(&o.previous, "previous", "p", false, "Print the log of the previous container, which has ended")
	flags.Int64Var(&o.tail, "tail", 100, "The number of lines for each pod, or -1 for all")
	flags.DurationVar(&o.since, "since", 0, "Only lines that are not older, such as 10m")
	o.BindWorkspace(agent)
	o.BindMemberContext(agent, &o.memberContext, "A context of the kubeconfig that connects directly to the member")
	cli.Complete(agent, "cluster", o.CompleteNames("Cluster"))
	c.AddCommand(agent)
	return c
}

// oneFlag rejects arguments. An argument is probably the name of the Cluster.
func oneFlag(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("kubectl drover logs agent has no arguments but got %q: use \"kubectl drover logs agent -c %s\"",
			cli.Visible(args[0]), cli.Visible(args[0]))
	}
	return nil
}

func (o *logs) run(c *cobra.Command) error {
	if (o.cluster == "") == (o.memberContext == "") {
		return errors.New("set either --cluster, to read the log through the hub, or --member-context: for example " +
			"\"kubectl drover logs agent -c CLUSTER\"")
	}
	if err := o.TakeWorkspace(&o.cluster); err != nil {
		return err
	}
	flags := o.Overrides.AuthInfo
	if flags.Token != "" || flags.TokenFile != "" || flags.ClientCertificate != "" || o.Overrides.Context.AuthInfo != "" {
		return errors.New("--token, --user and client certificates are not supported here: select a context of this user")
	}
	config, err := o.config()
	if err != nil {
		return err
	}
	config = rest.CopyConfig(config)
	config.Timeout = 0 // a timeout would also end a log that is being followed
	core, err := coreclient.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client for %s: %w", config.Host, err)
	}
	return o.print(c, core.Pods(protocol.AgentNamespace))
}

func (o *logs) config() (*rest.Config, error) {
	if o.memberContext != "" {
		return o.MemberConfig(o.memberContext, "", "", "")
	}
	h, err := o.HubToRead()
	if err != nil {
		return nil, err
	}
	base, _ := o.Proxy()
	if base == "" {
		return nil, errors.New("the kubeconfig does not have the address of the hub's proxy: set it once with \"kubectl " +
			"drover use --hub=URL --ca FILE --context CONTEXT\", or use --member-context")
	}
	return o.MemberConfig("", base, h.Workspace, o.cluster)
}

func (o *logs) print(c *cobra.Command, pods coreclient.PodInterface) error {
	ctx := c.Context()
	listing, cancel := cli.Bounded(ctx)
	defer cancel()
	list, err := pods.List(listing, metav1.ListOptions{LabelSelector: agentPods, Limit: maxPods})
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("you may not list the pods of the agent: ask for a role such as cluster-owner: %w", err)
	case err != nil && o.memberContext == "":
		return fmt.Errorf("%w: if the agent is not connected, use --member-context", cli.Unreached(err))
	case err != nil:
		return cli.Unreached(err)
	case len(list.Items) == 0:
		return fmt.Errorf("the namespace %s has no pod of an agent: \"kubectl drover import\" installs one",
			protocol.AgentNamespace)
	}
	if list.Continue != "" {
		c.PrintErrf("There are more than %d pods; the logs of the others are not printed.\n", maxPods)
	}
	lines := &lineWriter{out: c.OutOrStdout()}
	var running sync.WaitGroup
	failed := make([]error, len(list.Items))
	for i := range list.Items {
		name, prefix := list.Items[i].Name, ""
		if len(list.Items) > 1 {
			prefix = "[" + name + "] "
		}
		running.Go(func() {
			if err := o.printPod(ctx, pods, name, prefix, lines); err != nil {
				failed[i] = fmt.Errorf("read the log of pod %s: %w", name, err)
			}
		})
	}
	running.Wait()
	return errors.Join(failed...)
}

func (o *logs) printPod(
	ctx context.Context, pods coreclient.PodInterface, name, prefix string, lines *lineWriter,
) error {
	options := &corev1.PodLogOptions{Follow: o.follow, Previous: o.previous}
	if o.tail >= 0 {
		options.TailLines = &o.tail
	}
	if o.since > 0 {
		seconds := max(1, int64(o.since.Seconds()))
		options.SinceSeconds = &seconds
	}
	log, err := pods.GetLogs(name, options).Stream(ctx)
	if err != nil {
		return cli.Unreached(err)
	}
	defer log.Close()
	scanner := bufio.NewScanner(log)
	scanner.Buffer(nil, maxLine)
	for scanner.Scan() {
		if err := lines.write(prefix + scanner.Text() + "\n"); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return scanner.Err()
}

// lineWriter writes the lines of several logs to one output.
type lineWriter struct {
	mu  sync.Mutex // guards out
	out io.Writer
}

func (w *lineWriter) write(line string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := io.WriteString(w.out, line)
	return err
}
