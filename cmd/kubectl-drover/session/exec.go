// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

const (
	// envCluster is the environment variable that contains the name of the Cluster, in the form WORKSPACE/NAME.
	envCluster = "DROVER_CLUSTER"
	// execGrace is how long a command may take to exit after an interrupt.
	execGrace = 5 * time.Second
	// maxCaptured is the maximum amount of a command's output that is kept for -o json, in bytes.
	maxCaptured = 1 << 20
)

// fanout holds the flags of "exec".
type fanout struct {
	all      bool
	parallel int
	timeout  time.Duration
}

// NewExec returns the command "exec".
func NewExec(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared, changes: true, fansOut: true}
	var f fanout
	c := &cobra.Command{
		Use: "exec {CLUSTER… | --all} -- COMMAND [ARGUMENT…]", Short: "Run a command for each of several Clusters",
		Long: `Run a command on this computer for each of several Clusters. CLUSTER is a name, or
WORKSPACE/NAME. --all selects all Clusters that you can reach, or with -l those with matching labels.

The environment of each run has KUBECONFIG, a kubeconfig for the Cluster, and ` + envCluster + `, the
Cluster as WORKSPACE/NAME. If you have signed in, this kubeconfig has no token. Otherwise it has the
credentials of the user of your kubeconfig. It is removed at the end.

Each line of output begins with its Cluster. At the end, the command lists the Clusters for which it
failed, and the Clusters for which it was not run because they are not connected.

Exit codes: 0 the command succeeded for all Clusters; 1 it failed or was not run for some; 2 an
error occurred.`,
		Example: `  kubectl drover exec --all -l env=prod -- kubectl get nodes
  kubectl drover exec prod-eu prod-us -- helm list -A
  kubectl drover exec --all -o json -- kubectl get pods -A -o name`,
		PreRunE: func(*cobra.Command, []string) error { return o.CheckOutput() },
		RunE: func(c *cobra.Command, args []string) error {
			names, command, err := f.split(c, args)
			if err != nil {
				return err
			}
			return o.exec(c, f, names, command)
		},
	}
	flags := c.Flags()
	flags.BoolVar(&f.all, "all", false, "Run the command for all Clusters that you can reach")
	flags.IntVar(&f.parallel, "parallel", 8, "For how many Clusters the command runs at the same time")
	flags.DurationVar(&f.timeout, "timeout", 0, "How long the command may take for one Cluster (default: no limit)")
	flags.StringVarP(&o.Workspace, "workspace", "w", "", "With --all, select one workspace only, a namespace of the hub")
	o.BindOutputAs(c, "The output format: text, json or yaml; json and yaml are printed at the end")
	o.bindSelector(c)
	cli.Complete(c, "workspace", o.completeReachable(func(c reachableCluster) []string { return []string{c.Namespace} }))
	c.ValidArgsFunction = o.completeReachable(namesOf)
	return c
}

// split splits the arguments into Clusters and the command.
func (f fanout) split(c *cobra.Command, args []string) (names, command []string, err error) {
	dash := c.ArgsLenAtDash()
	if dash < 0 || dash == len(args) {
		return nil, nil, errors.New(`no command is given: add "-- COMMAND" after the Clusters`)
	}
	names, command = args[:dash], args[dash:]
	chosen := c.Flags().Changed("selector") || c.Flags().Changed("workspace")
	switch {
	case f.all == (len(names) > 0):
		return nil, nil, errors.New("no Clusters are given: name Clusters, or use --all to select all that you can reach, " +
			"optionally with -l LABELS")
	case chosen && !f.all:
		return nil, nil, errors.New("-l and -w require --all: use --all, or name Clusters as WORKSPACE/NAME")
	case f.parallel < 1:
		return nil, nil, fmt.Errorf("--parallel is %d: it must be 1 or more", f.parallel)
	}
	return names, command, nil
}

// outcome is the result of the command for one Cluster.
type outcome struct {
	Cluster string `json:"cluster"`
	// ExitCode is absent if the command was not run or was killed.
	ExitCode *int `json:"exitCode,omitempty"`
	// Error is the reason why the command failed or was not run.
	Error string `json:"error,omitempty"`
	// Stdout and Stderr contain the beginning of the command's output, at most 1 MiB each.
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
	// Truncated is true if some of the command's output is missing from Stdout or Stderr.
	Truncated bool `json:"truncated,omitempty"`
}

// outcomes holds the outcome for each Cluster, ordered by name.
type outcomes struct {
	Items []outcome `json:"items"`
	// Incomplete is true if there may be more Clusters, for which the command was not run.
	Incomplete bool `json:"incomplete,omitempty"`
}

func (o *options) exec(c *cobra.Command, f fanout, names, command []string) error {
	session, list, err := o.execTargets(c.Context(), f, names)
	if err != nil {
		return err
	}
	return o.fanOut(c, f, session, list, command)
}

// fanOut runs a command for each Cluster in a list.
func (o *options) fanOut(c *cobra.Command, f fanout, session *login.Session, list reachable, command []string) error {
	program, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("run %s: %w", command[0], err)
	}
	dir, err := os.MkdirTemp("", "kubectl-drover-exec-")
	if err != nil {
		return fmt.Errorf("create a folder for kubeconfigs: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r := runner{
		session: session, user: o.userOf(session), program: program, args: command[1:], dir: dir, timeout: f.timeout,
		capture: o.Output != cli.OutputText,
	}
	r.out, r.complaints = &merged{to: c.OutOrStdout()}, &merged{to: c.ErrOrStderr()}
	done := outcomes{Items: make([]outcome, len(list.Items)), Incomplete: list.Incomplete}
	places, running := make(chan struct{}, f.parallel), sync.WaitGroup{}
	for i, cluster := range list.Items {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			done.Items[i] = r.run(c.Context(), i, cluster)
		})
	}
	running.Wait()
	if err := errors.Join(r.out.err, r.complaints.err); err != nil {
		return fmt.Errorf("print the output: %w", err)
	}
	if o.Output == cli.OutputText {
		fmt.Fprint(c.ErrOrStderr(), done.text())
	} else if err := o.Print(c.OutOrStdout(), done, nil); err != nil {
		return err
	}
	if done.failed() {
		return cli.ErrDenied
	}
	return nil
}

// execTargets returns the user's session and the Clusters to run a command for.
func (o *options) execTargets(ctx context.Context, f fanout, names []string) (*login.Session, reachable, error) {
	ctx, cancel := cli.Bounded(ctx)
	defer cancel()
	session, err := o.signedInOrPlain(ctx)
	if err != nil {
		return nil, reachable{}, err
	}
	var list reachable
	if f.all {
		list, err = clustersOf(ctx, session, o.Workspace, o.selector)
	} else if list, err = reachableOf(ctx, session, names); err == nil {
		list.Items, err = list.choose(names)
		list.Incomplete = false // all named Clusters were found
	}
	if err == nil && len(list.Items) == 0 {
		err = errors.New(strings.TrimSuffix(list.text(o.Workspace, o.selector), "\n"))
	}
	return session, list, err
}

type runner struct {
	session         *login.Session
	user            *clientcmdapi.AuthInfo // nil if the user has signed in
	program         string
	args            []string
	dir             string
	timeout         time.Duration
	capture         bool
	out, complaints *merged
}

// run runs the command for the nth Cluster.
func (r *runner) run(ctx context.Context, n int, cluster reachableCluster) outcome {
	done := outcome{Cluster: cluster.String()}
	if ctx.Err() != nil {
		done.Error = "not run: interrupted"
		return done
	}
	if cluster.Ready == "False" {
		done.Error = "not run: the Cluster is not ready: " + cluster.Reason
		return done
	}
	file := filepath.Join(r.dir, fmt.Sprint(n))
	config := clientcmdapi.NewConfig()
	config.CurrentContext = addContext(config, r.session, cluster)
	if r.session.User != "" {
		config.AuthInfos[r.session.User] = r.user
	}
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		done.Error = "not run: write its kubeconfig: " + err.Error()
		return done
	}
	if r.timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, r.timeout)
		defer cancel()
		ctx = limited
	}
	command := exec.CommandContext(ctx, r.program, r.args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+file, envCluster+"="+cluster.String())
	command.Cancel, command.WaitDelay = func() error { return command.Process.Signal(os.Interrupt) }, execGrace
	var stdout, stderr bounds
	command.Stdout, command.Stderr = io.Writer(&stdout), io.Writer(&stderr)
	if !r.capture {
		out, complaints := r.out.of(done.Cluster), r.complaints.of(done.Cluster)
		defer out.end()
		defer complaints.end()
		command.Stdout, command.Stderr = out, complaints
	}
	err := command.Run()
	done.Stdout, done.Stderr, done.Truncated = stdout.String(), stderr.String(), stdout.more || stderr.more
	if state := command.ProcessState; state != nil && state.Exited() {
		code := state.ExitCode()
		done.ExitCode = &code
	}
	switch {
	case err != nil && ctx.Err() != nil && r.timeout > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded):
		done.Error = fmt.Sprintf("ended after %s", r.timeout)
	case err != nil && ctx.Err() != nil:
		done.Error = "interrupted"
	case err != nil:
		done.Error = err.Error()
	}
	return done
}

func (d outcomes) failed() bool {
	for _, one := range d.Items {
		if one.Error != "" {
			return true
		}
	}
	return d.Incomplete
}

// text lists the Clusters for which the command did not succeed.
func (d outcomes) text() string {
	var b strings.Builder
	bad := 0
	for _, one := range d.Items {
		if one.Error != "" {
			bad++
			fmt.Fprintf(&b, "%s: %s\n", cli.Plain(one.Cluster), cli.Plain(one.Error))
		}
	}
	fmt.Fprintf(&b, "%d of %d Clusters: succeeded\n", len(d.Items)-bad, len(d.Items))
	if d.Incomplete {
		b.WriteString("The list may be incomplete, because the hub could not check all of your rights. Select a workspace " +
			"with -w.\n")
	}
	return b.String()
}
