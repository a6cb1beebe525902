// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// approvalManager is the field manager of approvals and overrides. Its name must not begin with "kubectl", because Flux
// removes the fields of such managers from the objects that it applies.
const approvalManager = "drover-approval"

// Gated holds the parts of a Plan or Baseline that an approval depends on.
type Gated struct {
	Observed int64 // the generation that the status describes
	Message  string
	Waves    []v1.WaveStatus
	// Names lists the names of all waves, and InWave returns the names of the Clusters in a wave.
	Names     []string
	InWave    func(clusters []v1.Cluster, wave string) ([]string, error)
	Approvals *[]v1.Approval
}

// Approvable describes the objects whose waves a command approves.
type Approvable[P client.Object] struct {
	Kind     string // in lowercase
	Resource string // the name in commands
	Read     func(ctx context.Context, h *Hub, name string) (P, error)
	// Gated returns the parts of an object. Its approvals are a pointer into the object.
	Gated func(P) Gated
	// Describe describes the work that is approved, for the user's confirmation.
	Describe func(P) string
}

// approveOptions holds the flags of a command that approves waves.
type approveOptions[P client.Object] struct {
	*Options
	Approvable[P]
	wave, by string
	yes      bool
}

// Approving completes a command that approves a wave. The first argument is the name of the object.
func Approving[T any, P interface {
	*T
	client.Object
	DeepCopyInto(*T)
}](o *Options, c *cobra.Command, what Approvable[P]) *cobra.Command {
	a := &approveOptions[P]{Options: o, Approvable: what}
	change := BindChange(c)
	BindYes(c, &a.yes)
	c.Args = Arguments(1, "NAME")
	c.Flags().StringVar(&a.wave, "wave", "", "The wave (default: the first that waits for approval)")
	c.Flags().StringVar(&a.by, "approved-by", "", "The user who approves (default: you)")
	Complete(c, "wave", a.completeWaves)
	Complete(c, "approved-by", cobra.NoFileCompletions)
	c.RunE = func(c *cobra.Command, args []string) error {
		object, wave, question, err := a.prepare(c, args[0])
		if err != nil {
			return err
		}
		if wave != nil && change.Real() {
			if err := Confirm(c, a.yes, question); err != nil {
				return err
			}
		}
		return a.OnHub(c, CommandLimit, func(ctx context.Context, h *Hub) error {
			if wave == nil {
				return change.Make(h, object, "unchanged: it waits for no approval", func(client.Client) error { return nil })
			}
			entry := v1.Approval{Wave: wave.Name, Revision: wave.Approval.Revision, ApprovedBy: a.by}
			before := P(new(T))
			object.DeepCopyInto((*T)(before))
			add := func(p P) { setApproval(a.Gated(p), entry) }
			add(object)
			return change.Make(h, object, "approved for wave "+wave.Name, func(w client.Client) error {
				return Decide(ctx, h, w, a.Kind, before, object, add)
			})
		})
	}
	return c
}

// prepare returns the object, the wave to approve, and the question that the user has to confirm. The wave is nil if
// there is none.
func (a *approveOptions[P]) prepare(c *cobra.Command, name string) (
	object P, wave *v1.WaveStatus, question string, err error,
) {
	err = a.OnHub(c, CommandLimit, func(ctx context.Context, h *Hub) (err error) {
		if object, err = a.Read(ctx, h, name); err != nil {
			return err
		}
		if wave, err = a.toApprove(object); err != nil || wave == nil {
			return err
		}
		if a.by == "" {
			if a.by, err = UserName(ctx, h); err != nil {
				return err
			}
		}
		where, err := inWave(ctx, h, a.Gated(object), wave.Name)
		question = fmt.Sprintf("approve wave %s of %s %s/%s: %s, on %s, revision %s, and with all other settings that "+
			"\"kubectl get %[8]s %[4]s -n %[3]s -o yaml\" shows", wave.Name, a.Kind, object.GetNamespace(),
			object.GetName(), a.Describe(object), where, wave.Approval.Revision, a.Resource)
		return err
	})
	return object, wave, question, err
}

// toApprove returns the wave to approve: the wave in the flag or, if the flag is not set, the first wave without an
// approval. It returns nil if the wave has been approved, or if there is no such wave.
func (a *approveOptions[P]) toApprove(object P) (*v1.WaveStatus, error) {
	g, title := a.Gated(object), fmt.Sprintf("%s %s/%s", a.Kind, object.GetNamespace(), object.GetName())
	if err := Observed(a.Kind, object, g.Observed); err != nil {
		return nil, err
	}
	var names []string
	for i := range g.Waves {
		w := &g.Waves[i]
		if w.Approval == nil {
			continue
		}
		names = append(names, w.Name)
		switch {
		case a.wave != "" && w.Name != a.wave || a.wave == "" && w.Approval.ApprovedBy != "":
		case w.Approval.ApprovedBy != "":
			return nil, nil
		case w.Approval.Revision == "":
			return nil, fmt.Errorf("%s has no revision to approve: %s", title, g.Message)
		default:
			return w, nil
		}
	}
	switch {
	case len(names) == 0:
		return nil, fmt.Errorf("no wave of %s requires approval: set approval: Required in spec.rollout.waves", title)
	case a.wave != "" && !slices.Contains(names, a.wave):
		return nil, fmt.Errorf("%s has no wave %q that requires approval: use one of %s", title, Plain(a.wave),
			Plain(strings.Join(names, ", ")))
	}
	return nil, nil
}

// completeWaves completes --wave with the waves that wait for approval.
func (a *approveOptions[P]) completeWaves(c *cobra.Command, args []string, start string) ([]string,
	cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), CompletionLimit)
	defer cancel()
	var names []string
	if h, err := a.HubToRead(); err == nil && len(args) == 1 {
		if object, err := a.Read(ctx, h, args[0]); err == nil {
			for _, w := range a.Gated(object).Waves {
				if w.Approval != nil && w.Approval.ApprovedBy == "" {
					names = append(names, w.Name)
				}
			}
		}
	}
	return Beginning(start, names)
}

// setApproval adds an approval. It replaces an earlier approval of the same wave, and removes the approvals of waves
// that no longer exist, because the number of approvals is limited.
func setApproval(g Gated, entry v1.Approval) {
	approvals := slices.DeleteFunc(slices.Clone(*g.Approvals), func(a v1.Approval) bool {
		return a.Wave == entry.Wave || !slices.Contains(g.Names, a.Wave)
	})
	*g.Approvals = append(approvals, entry)
}

// inWave describes the Clusters in a wave.
func inWave(ctx context.Context, h *Hub, g Gated, wave string) (string, error) {
	var clusters v1.ClusterList
	if err := h.List(ctx, &clusters, h.InWorkspace()); err != nil {
		return "", fmt.Errorf("list clusters of %s: %w", h.Workspace, err)
	}
	names, err := g.InWave(clusters.Items, wave)
	switch {
	case err != nil:
		return "", err
	case len(names) == 0:
		return "no cluster yet", nil
	case len(names) == 1:
		return "1 cluster (" + names[0] + ")", nil
	}
	return fmt.Sprintf("%d clusters (%s)", len(names), Listed(names)), nil
}

// Listed returns the first names of a list.
func Listed(names []string) string {
	const shown = 5
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}

// Observed returns an error if the status describes an earlier generation of an object.
func Observed(kind string, object client.Object, generation int64) error {
	if generation != object.GetGeneration() {
		return fmt.Errorf("%s %s/%s was changed, and Drover has not looked at the change yet: try again", kind,
			object.GetNamespace(), object.GetName())
	}
	return nil
}

// UserName returns the user's name according to the hub's API server.
func UserName(ctx context.Context, h *Hub) (string, error) {
	c, err := authenticationclient.NewForConfig(h.Config)
	if err != nil {
		return "", fmt.Errorf("read your user name at %s: %w", h.Config.Host, err)
	}
	me, err := c.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("read your user name at %s: %w: set it with --approved-by or --overridden-by", h.Config.Host,
			err)
	}
	return me.Status.UserInfo.Username, nil
}

// Decide writes an approval or an override, and updates the object. If another client changes the object in the
// meantime, Decide adds the same decision to the changed object. The decision then counts only if the revision is still
// the same.
func Decide[T any, P interface {
	*T
	client.Object
	DeepCopyInto(*T)
}](
	ctx context.Context, h *Hub, w client.Client, kind string, before, object P, add func(P),
) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, read := P(new(T)), P(new(T))
		if err := h.Get(ctx, client.ObjectKeyFromObject(before), now); err != nil {
			return err
		}
		if now.GetUID() != before.GetUID() {
			return errors.New("it was deleted and created again")
		}
		now.DeepCopyInto((*T)(read))
		add(now)
		patch := client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{})
		if err := w.Patch(ctx, now, patch, client.FieldOwner(approvalManager)); err != nil {
			return err
		}
		now.DeepCopyInto((*T)(object))
		return nil
	})
	if err != nil {
		return fmt.Errorf("change %s %s/%s: %w", kind, before.GetNamespace(), before.GetName(), err)
	}
	return nil
}
