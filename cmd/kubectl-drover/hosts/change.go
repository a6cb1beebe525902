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
		Use: "join NAME", Short: "Make a Host if it is not there, and print the command by which a machine joins as it",
		Long: `Make a Host if it is not there, and print the command by which a machine joins as it. Run what it prints on the machine, as root, with --role, --label and --taint at its end.

It works once, within the Host's tokenTTL: keep it as you keep a password. It takes the right to create Hosts, and to get Secrets, in one workspace.`,
		Example: "  kubectl drover host join rack1 --labels zone=a -w team-a",
		Args:    cli.Arguments(1, "a name for the Host"), ValidArgsFunction: o.CompleteNames("Host"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.OnHub(c, timeout, func(ctx context.Context, h *cli.Hub) error {
				return joinHost(ctx, h, args[0], set, c.OutOrStdout(), c.ErrOrStderr())
			})
		},
	}
	o.BindWorkspace(c)
	c.Flags().StringVar(&set, "labels", "", "Labels of a Host that is made, for example zone=a,size=large")
	c.Flags().DurationVar(&timeout, "timeout", cli.CommandLimit, "How long to wait for the command")
	return c
}

func joinHost(ctx context.Context, h *cli.Hub, name, set string, out, says io.Writer) error {
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
		fmt.Fprintf(says, "Host %s/%s is made\n", h.Workspace, name)
	case !apierrors.IsAlreadyExists(err):
		return fmt.Errorf("make Host %s/%s: %w", h.Workspace, name, err)
	}
	command := ""
	err = awaitHost(ctx, h, name, says, func(host *v1.Host, err error) (bool, error) {
		if err != nil {
			return false, err
		}
		ready := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionReady)
		if ready == nil || ready.ObservedGeneration != host.Generation {
			return false, nil
		}
		if host.Status.State != v1.HostWaitingToRegister {
			return false, fmt.Errorf("a machine has joined as Host %s/%s; to let another one take its place, delete the Secret %s%s", h.Workspace, name, name, v1.HostAgentSecretSuffix)
		}
		if ready.Reason != v1.ReasonAwaitingAgent {
			return false, fmt.Errorf("no machine can join as Host %s/%s: %s: %s", h.Workspace, name, ready.Reason, cli.Plain(ready.Message))
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
	fmt.Fprintln(says, "run this on the machine, as root; it works once, keep it secret:")
	_, err = fmt.Fprintln(out, command)
	return err
}

func newClean(o *cli.Options) *cobra.Command {
	yes, timeout := false, time.Duration(0)
	c := &cobra.Command{
		Use: "clean NAME --yes", Short: "Take a Host's plan away, so that its machine is cleaned and Available for another",
		Long: `Take a Host's plan away: what the plan says of that is done on the machine, its files are removed, and the Host is Available for another plan. It deletes the Secret NAME-host-plan.

A plan that a controller made, comes back: remove what the Host is for, in place of its plan.`,
		Example: "  kubectl drover host clean rack1 --yes",
		Args:    cli.Arguments(1, "the name of a Host"), ValidArgsFunction: o.CompleteNames("Host"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.OnHub(c, timeout, func(ctx context.Context, h *cli.Hub) error { return cleanHost(ctx, h, args[0], yes, c.ErrOrStderr()) })
		},
	}
	o.BindWorkspace(c)
	c.Flags().BoolVar(&yes, "yes", false, "Uninstall what the plan installed")
	c.Flags().DurationVar(&timeout, "timeout", hostWait, "How long to wait for the machine")
	return c
}

func cleanHost(ctx context.Context, h *cli.Hub, name string, yes bool, says io.Writer) error {
	host, err := readHost(ctx, h, name)
	if err != nil {
		return err
	}
	if ref := host.Spec.ConsumerRef; ref != nil {
		return fmt.Errorf("nothing was changed: %s %s has taken Host %s/%s, and would install it again: change that, or delete it", ref.Kind, ref.Name, host.Namespace, host.Name)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: h.Workspace, Name: name + v1.HostPlanSecretSuffix}}
	if !yes {
		return fmt.Errorf("nothing was changed: what the plan of Host %s/%s installed is removed from the machine; add --yes", host.Namespace, host.Name)
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
	yes, leave, timeout := false, false, time.Duration(0)
	c := &cobra.Command{
		Use: "release NAME --yes", Short: "Delete a Host: its machine is cleaned, and the agent removed",
		Long: `Delete a Host: its machine is cleaned, and the agent removes itself, so that the machine is its owner's again. With --orphan all stays on the machine as it is.

A machine that is not connected is left as it is, and what runs on it goes on. Switch it off if it was a node.`,
		Example: "  kubectl drover host release rack1 --yes\n  kubectl drover host release rack1 --orphan --yes",
		Args:    cli.Arguments(1, "the name of a Host"), ValidArgsFunction: o.CompleteNames("Host"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.OnHub(c, timeout, func(ctx context.Context, h *cli.Hub) error {
				return releaseHost(ctx, h, args[0], yes, leave, c.ErrOrStderr())
			})
		},
	}
	o.BindWorkspace(c)
	c.Flags().BoolVar(&yes, "yes", false, "Delete the Host")
	c.Flags().BoolVar(&leave, "orphan", false, "Leave what is on the machine, as the deletionPolicy Orphan does")
	c.Flags().DurationVar(&timeout, "timeout", hostWait, "How long to wait for the machine")
	return c
}

func releaseHost(ctx context.Context, h *cli.Hub, name string, yes, leave bool, says io.Writer) error {
	host, err := readHost(ctx, h, name)
	if err != nil {
		return err
	}
	if !yes {
		taken := ""
		if ref := host.Spec.ConsumerRef; ref != nil {
			taken = fmt.Sprintf(", which %s %s loses", ref.Kind, ref.Name)
		}
		return fmt.Errorf("nothing was changed: Host %s/%s%s is deleted, and its machine cleaned unless --orphan is given; add --yes", host.Namespace, host.Name, taken)
	}
	if leave {
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
