// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/registration"
)

func newJoin(o *cli.Options) *cobra.Command {
	var set string
	timeout := time.Duration(0)
	c := &cobra.Command{
		Use: "join NAME", Short: "Create a Host if it does not exist, and print the command that joins a machine",
		Long: `Create a Host if it does not exist, and print the command that joins a machine to the hub as
this Host. Run the printed command on the machine as root. You can append --role, --label and
--taint.

The printed command works once, within the Host's tokenTTL. Protect it like a password. You need the
rights to create Hosts and to get Secrets in one workspace.`,
		Example: "  kubectl drover host join rack1 --labels zone=a -w team-a",
		Args:    cli.Arguments(1, "a name for the Host"), ValidArgsFunction: cli.First(o.CompleteNames("Host")),
		RunE: func(c *cobra.Command, args []string) error {
			return o.OnHub(c, timeout, func(ctx context.Context, h *cli.Hub) error {
				return joinHost(ctx, h, args[0], set, printer{c.OutOrStdout(), c.ErrOrStderr()})
			})
		},
	}
	o.BindWorkspace(c)
	c.Flags().StringVar(&set, "labels", "", "Labels for a new Host, for example zone=a,size=large")
	c.Flags().DurationVar(&timeout, "timeout", cli.CommandLimit, "How long to wait until the hub has the command")
	return c
}

// printer prints the result of a command to out, and progress messages to says.
type printer struct{ out, says io.Writer }

func joinHost(ctx context.Context, h *cli.Hub, name, set string, to printer) error {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return fmt.Errorf("a Host cannot have the name %s: %s", cli.Visible(name), strings.Join(problems, "; "))
	}
	labelled, err := labels.ConvertSelectorToLabelsMap(set)
	if err != nil {
		return fmt.Errorf("read --labels: %w", err)
	}
	host := &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: h.Workspace, Name: name, Labels: labelled}}
	switch err := h.Create(ctx, host, client.FieldOwner(cli.FieldManager)); {
	case err == nil:
		fmt.Fprintf(to.says, "Host %s/%s created\n", h.Workspace, name)
	case !apierrors.IsAlreadyExists(err):
		return fmt.Errorf("create Host %s/%s: %w", h.Workspace, name, err)
	}
	command := ""
	err = awaitHost(ctx, h, name, to.says, func(host *v1.Host, err error) (bool, error) {
		if err != nil {
			return false, err
		}
		ready := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionReady)
		if ready == nil || ready.ObservedGeneration != host.Generation {
			return false, nil
		}
		if host.Status.State != v1.HostWaitingToRegister {
			return false, fmt.Errorf("a machine has already joined as Host %s/%s; to replace it with another one, delete the "+
				"Secret %s%s", h.Workspace, name, name, v1.HostAgentSecretSuffix)
		}
		if ready.Reason != v1.ReasonAwaitingAgent {
			return false, fmt.Errorf("no machine can join as Host %s/%s: %s: %s", h.Workspace, name, ready.Reason,
				cli.Plain(ready.Message))
		}
		secret := &corev1.Secret{}
		if err := h.Get(ctx, types.NamespacedName{Namespace: h.Workspace, Name: name + v1.HostJoinSecretSuffix}, secret); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		if err := cli.MadeByDrover(secret, host, v1.SecretKindRegistration); err != nil {
			return false, err
		}
		command = string(secret.Data[registration.KeyCommand])
		return command != "", nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(to.says, "run this as root on the machine; it works once, keep it secret:")
	_, err = fmt.Fprintln(to.out, command)
	return err
}

func newClean(o *cli.Options) *cobra.Command {
	yes, timeout := false, time.Duration(0)
	c := &cobra.Command{
		Use: "clean NAME --yes", Short: "Remove a Host's instructions, so that the machine is cleaned and Available again",
		Long: `Remove a Host's instructions. The machine carries out the instructions to clean it, and removes
their files. Then the Host is Available for others. The command deletes the Secret NAME-host-plan.

A controller recreates instructions that it made. In that case, delete the object that the Host is
used for instead.`,
		Example: "  kubectl drover host clean rack1 --yes",
		Args:    cli.Arguments(1, "the name of a Host"), ValidArgsFunction: cli.First(o.CompleteNames("Host")),
		RunE: func(c *cobra.Command, args []string) error {
			return o.OnHub(c, timeout, func(ctx context.Context, h *cli.Hub) error { return cleanHost(ctx, h, args[0], yes, c.ErrOrStderr()) })
		},
	}
	o.BindWorkspace(c)
	c.Flags().BoolVar(&yes, "yes", false, "Confirm that everything that the instructions installed is uninstalled")
	c.Flags().DurationVar(&timeout, "timeout", hostWait, "How long to wait for the machine")
	return c
}

func cleanHost(ctx context.Context, h *cli.Hub, name string, yes bool, says io.Writer) error {
	host, err := readHost(ctx, h, name)
	if err != nil {
		return err
	}
	if ref := host.Spec.ConsumerRef; ref != nil {
		return fmt.Errorf("nothing was changed: %s %s uses Host %s/%s and would install it again: change or delete that "+
			"object", ref.Kind, ref.Name, host.Namespace, host.Name)
	}
	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = h.Workspace, name+v1.HostInstructionsSecretSuffix
	if !yes {
		return fmt.Errorf("nothing was changed: everything that the instructions of Host %s/%s installed would be removed "+
			"from the machine; confirm with --yes", host.Namespace, host.Name)
	}
	if err := client.IgnoreNotFound(h.Delete(ctx, secret)); err != nil {
		return fmt.Errorf("delete Secret %s: %w", client.ObjectKeyFromObject(secret), err)
	}
	return awaitHost(ctx, h, name, says, func(host *v1.Host, err error) (bool, error) {
		if err != nil {
			return false, err
		}
		if held := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionRestoreConfirmed); held != nil {
			return false, fmt.Errorf("host %s/%s is not cleaned yet: %s", h.Workspace, name, cli.Plain(held.Message))
		}
		if stalled := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionStalled); stalled != nil && host.Status.State == v1.HostCleaning {
			return false, fmt.Errorf("host %s/%s cannot be cleaned: %s", h.Workspace, name, cli.Plain(stalled.Message))
		}
		return host.Status.State == v1.HostAvailable && meta.IsStatusConditionTrue(host.Status.Conditions, v1.ConditionReady), nil
	})
}

func newRelease(o *cli.Options) *cobra.Command {
	var how releasing
	timeout := time.Duration(0)
	c := &cobra.Command{
		Use: "release NAME --yes", Short: "Delete a Host, clean its machine and remove the agent",
		Long: `Delete a Host. The machine is cleaned, the agent removes itself, and the machine is free for
other use. With --orphan, everything stays on the machine.

A machine that is not connected is not cleaned, and its workloads go on running. Switch it off if it
was a node.`,
		Example: "  kubectl drover host release rack1 --yes\n  kubectl drover host release rack1 --orphan --yes",
		Args:    cli.Arguments(1, "the name of a Host"), ValidArgsFunction: cli.First(o.CompleteNames("Host")),
		RunE: func(c *cobra.Command, args []string) error {
			return o.OnHub(c, timeout, func(ctx context.Context, h *cli.Hub) error {
				return releaseHost(ctx, h, args[0], how, c.ErrOrStderr())
			})
		},
	}
	o.BindWorkspace(c)
	c.Flags().BoolVar(&how.yes, "yes", false, "Confirm that the Host is deleted")
	c.Flags().BoolVar(&how.orphan, "orphan", false, "Leave everything on the machine, as with the deletionPolicy Orphan")
	c.Flags().DurationVar(&timeout, "timeout", hostWait, "How long to wait for the machine")
	return c
}

// releasing holds the flags of "release".
type releasing struct{ yes, orphan bool }

func releaseHost(ctx context.Context, h *cli.Hub, name string, how releasing, says io.Writer) error {
	host, err := readHost(ctx, h, name)
	if err != nil {
		return err
	}
	if !how.yes {
		taken := ""
		if ref := host.Spec.ConsumerRef; ref != nil {
			taken = fmt.Sprintf(", which %s %s loses", ref.Kind, ref.Name)
		}
		return fmt.Errorf("nothing was changed: Host %s/%s%s would be deleted, and its machine cleaned unless you use "+
			"--orphan; confirm with --yes", host.Namespace, host.Name, taken)
	}
	if how.orphan {
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"deletionPolicy": v1.HostOrphan}})
		if err != nil {
			return err
		}
		if err := h.Patch(ctx, host, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return fmt.Errorf("set the deletionPolicy of Host %s/%s: %w", h.Workspace, name, err)
		}
	}
	if err := h.Delete(ctx, host, client.Preconditions{UID: &host.UID}); err != nil {
		return fmt.Errorf("delete Host %s/%s: %w", h.Workspace, name, err)
	}
	return awaitHost(ctx, h, name, says, func(_ *v1.Host, err error) (bool, error) {
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}
