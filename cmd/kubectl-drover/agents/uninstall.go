// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// NewUninstall returns the command "uninstall".
func NewUninstall(o *cli.Options) *cobra.Command {
	var dryRun, yes bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove everything that Drover installed in a member",
		Long: `Remove everything that Drover installed in a member: the agent and its namespace; the roles,
bindings, quotas, policies and Secrets of projects and bindings; and the objects that plans need.
Nodes that a plan cordoned are uncordoned.

The member is the cluster of your kubeconfig or of --context. You must be an administrator of that
cluster. Neither the hub nor the agent has to be running.

Nothing else is changed. The namespace drover-agent is deleted; if the agent runs in another
namespace, only Drover's objects in it are deleted. A hub stays a hub. Namespaces of projects stay,
without Drover's labels. If users have Plans of their own in the member, the objects that plans need
stay.

The command asks before it removes anything; scripts use --yes. You can run it again. Usually "kubectl delete cluster" on the hub is enough. Use this
command for a member that could not be reached then.

Exit codes: 0 nothing is left; 2 an error occurred, or something is left.`,
		Example: `  kubectl drover uninstall --context prod-eu --dry-run
  kubectl drover uninstall --kubeconfig prod-eu.kubeconfig --yes`,
		Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.HubName != "" {
				return errors.New("uninstall does not support --hub: select the member with --context or --kubeconfig")
			}
			u, err := newUninstaller(o, c.OutOrStdout(), dryRun)
			if err != nil {
				return err
			}
			u.confirm = func(count int) error {
				return cli.Confirm(c, yes, fmt.Sprintf("remove the agent and everything else that Drover installed, %d objects, "+
					"from the cluster at %s", count, u.server))
			}
			return u.start(c.Context(), timeout)
		},
	}
	cli.BindYes(c, &yes)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "Only print what would be removed")
	c.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "How long to wait until everything is removed")
	return c
}

// uninstaller removes everything that Drover installed in a member.
type uninstaller struct {
	objects metadata.Interface
	server  string
	out     io.Writer
	dryRun  bool
	said    map[string]bool // lines that have already been printed
	confirm func(count int) error
}

// newUninstaller connects directly to the cluster in the kubeconfig.
func newUninstaller(o *cli.Options, out io.Writer, dryRun bool) (*uninstaller, error) {
	config, err := cli.ConfigOf(o.Kubeconfig(), "member")
	if err != nil {
		return nil, err
	}
	if _, through := cli.HubBase(config.Host); through {
		return nil, fmt.Errorf("%s leads through the hub to the agent that would be removed: use --context with a context "+
			"that connects directly to the member", config.Host)
	}
	if cli.SignsInAtHub(config.ExecProvider) {
		return nil, fmt.Errorf("the context of %s has a user who signs in to the hub, and may lead to the agent that would "+
			"be removed: use --context with a context of the member's own", config.Host)
	}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 50, 100
	cli.Bound(config)
	u := &uninstaller{server: config.Host, out: out, dryRun: dryRun, said: map[string]bool{}}
	if u.objects, err = metadata.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make client for %s: %w", config.Host, err)
	}
	return u, nil
}

// start asks the user for confirmation, and then removes everything within a time limit. The time that the user takes
// to answer does not count toward the limit.
func (u *uninstaller) start(ctx context.Context, limit time.Duration) error {
	reading, cancel := context.WithTimeout(ctx, limit)
	found, err := u.gather(reading)
	cancel()
	if err == nil && len(found) == 0 {
		u.say("no objects of an agent are left in the cluster at " + u.server)
		return nil
	}
	if err == nil && !u.dryRun {
		err = u.confirm(len(found))
	}
	if err != nil {
		return err
	}
	ctx, cancel = context.WithTimeout(ctx, limit)
	defer cancel()
	return u.run(ctx)
}

// run removes objects until none is left. It runs several rounds, because an agent that is still running may recreate
// some objects.
func (u *uninstaller) run(ctx context.Context) error {
	var left []removal
	var problems []error
	u.say("removing everything that Drover installed in the cluster at " + u.server)
	err := wait.PollUntilContextCancel(ctx, cli.LookInterval, true, func(ctx context.Context) (bool, error) {
		var err error
		if left, err = u.gather(ctx); err != nil {
			return false, err
		}
		if problems = nil; len(left) == 0 {
			return true, nil
		}
		for _, r := range left {
			if err := u.remove(ctx, r); err != nil {
				problems = append(problems, err)
			}
		}
		return u.dryRun, nil
	})
	switch {
	case wait.Interrupted(err) && len(left) > 0:
		for _, r := range left {
			problems = append(problems, fmt.Errorf("%s is still there", r))
		}
		// a lost connection must not hide the other errors
		return errors.New("not everything is gone, run it again: " + errors.Join(problems...).Error())
	case err != nil:
		return err
	case !u.dryRun:
		u.say("nothing of Drover is left in the cluster at " + u.server)
	}
	return nil
}

// remove carries out one removal. It skips objects that are already being deleted.
func (u *uninstaller) remove(ctx context.Context, r removal) error {
	if u.dryRun {
		u.say(r.String() + " " + r.done + " (dry run)")
		return nil
	}
	if r.leaving {
		return nil
	}
	var err error
	switch objects := u.objects.Resource(r.resource).Namespace(r.namespace); {
	case r.patch != nil:
		_, err = objects.Patch(ctx, r.name, r.patchType, r.patch, r.patchOptions())
	default:
		background := metav1.DeletePropagationBackground
		err = objects.Delete(ctx, r.name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(r.uid)), PropagationPolicy: &background})
	}
	// a new object with the same name is removed in the next round
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("%s: %w", r, err)
	}
	u.say(r.String() + " " + r.done)
	return nil
}

// say prints each line only once.
func (u *uninstaller) say(line string) {
	if !u.said[line] {
		u.said[line] = true
		fmt.Fprintln(u.out, cli.Plain(line)) // names of roles and bindings may contain any character
	}
}
