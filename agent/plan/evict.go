// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// The drain is ours, and not that of k8s.io/kubectl: with it the agent would be three times as large, in memory as on disk. Which pods go, and
// which keep a node from being drained, is as there.

const (
	defaultDrainTimeout = 15 * time.Minute // as the schema has it
	// refusedAgain is how long to wait before a pod is evicted again that a PodDisruptionBudget holds.
	refusedAgain = 5 * time.Second
	// firstLook and lastLook are how long to wait before looking whether pods have gone, the first time and after a while.
	firstLook, lastLook = 50 * time.Millisecond, time.Second
	// named is how many pods an error names.
	named = 3

	labelName = "app.kubernetes.io/name"
)

// Objects applies objects and reads metadata of any kind. Errors can be told apart with k8s.io/apimachinery/pkg/api/errors.
type Objects interface {
	Apply(ctx context.Context, path, manager string, force bool, object []byte) (*metav1.PartialObjectMetadata, bool, error)
	Meta(ctx context.Context, path string) (*metav1.PartialObjectMetadata, error)
}

// drain is a drain of a node for an attempt.
type drain struct {
	node, plan, hash string
	attempt          int32
	spec             v1.Drain
}

// drainer empties one node.
type drainer struct {
	drain
	member  member
	objects Objects
	pending map[types.UID]*leaver
}

// leaver is a pod that is to go.
type leaver struct {
	name    string // with its namespace
	path    string
	told    bool      // it is being deleted
	again   time.Time // when to tell it again
	refusal string
}

// run empties the node, or says why it cannot. The caller's ctx ends it early.
func (d *drainer) run(ctx context.Context) error {
	timeout := defaultDrainTimeout
	if d.spec.Timeout != nil {
		timeout = d.spec.Timeout.Duration
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	if err := d.begin(ctx, timeout); err != nil {
		return err
	}
	for wait := firstLook; len(d.pending) > 0; wait = min(2*wait, lastLook) {
		if err := d.tell(ctx); err != nil {
			return err
		}
		if !pause(ctx, wait) {
			return d.late(timeout)
		}
		if err := d.lookAgain(ctx); lasting(err) {
			return err
		}
	}
	return nil
}

// begin finds the pods that are to go. An API server that is away comes back: it may be what is upgraded.
func (d *drainer) begin(ctx context.Context, timeout time.Duration) error {
	for {
		err := d.look(ctx)
		switch {
		case err == nil || lasting(err):
			return err
		case !pause(ctx, lastLook):
			return fmt.Errorf("drain node %s: pods are not known after %s: %w", d.node, timeout, err)
		}
	}
}

// obstacle is what keeps a node from being drained.
type obstacle string

// Error says what.
func (o obstacle) Error() string { return string(o) }

// lasting says whether it makes no sense to try again.
func lasting(err error) bool {
	_, refused := refusedFor(err)
	return refused || errors.As(err, new(obstacle))
}

// late says which pods were still there when time was over.
func (d *drainer) late(timeout time.Duration) error {
	var left []string
	for _, l := range d.pending {
		left = append(left, strings.TrimSpace(l.name+" "+l.refusal))
	}
	return fmt.Errorf("drain node %s: %d pods are still there after %s: %s", d.node, len(left), timeout, some(left))
}

func some(names []string) string {
	slices.Sort(names)
	if len(names) > named {
		names = append(names[:named:named], "…")
	}
	return strings.Join(names, ", ")
}

func (d *drainer) list(ctx context.Context) ([]corev1.Pod, error) {
	options := metav1.ListOptions{FieldSelector: "spec.nodeName=" + d.node, Limit: pageSize}
	if d.spec.PodSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(d.spec.PodSelector)
		if err != nil {
			return nil, fmt.Errorf("read podSelector: %w", err)
		}
		options.LabelSelector = selector.String()
	}
	var all []corev1.Pod
	for {
		page, err := d.member.pods(ctx, "/api/v1/pods", options)
		if err != nil {
			return nil, fmt.Errorf("list pods of node %s: %w", d.node, err)
		}
		all = append(all, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			return all, nil
		}
	}
}

// look finds the pods that are to go. Nothing is evicted while one keeps the node from being drained.
func (d *drainer) look(ctx context.Context) error {
	pods, err := d.list(ctx)
	if err != nil {
		return err
	}
	d.pending = map[types.UID]*leaver{}
	obstacles := map[string][]string{}
	for i := range pods {
		p := &pods[i]
		name := p.Namespace + "/" + p.Name
		goes, hinders, err := d.judge(ctx, p)
		switch {
		case err != nil:
			return err
		case hinders != "":
			obstacles[hinders] = append(obstacles[hinders], name)
		case goes:
			d.pending[p.UID] = &leaver{name: name, path: pathNamespaces + "/" + p.Namespace + "/pods/" + p.Name, told: p.DeletionTimestamp != nil}
		}
	}
	var why []string
	for what, names := range obstacles {
		why = append(why, fmt.Sprintf("%s: %s", what, some(names)))
	}
	if slices.Sort(why); len(why) > 0 {
		return obstacle(fmt.Sprintf("drain node %s: %s", d.node, strings.Join(why, "; ")))
	}
	return nil
}

// judge says whether a pod goes, or what keeps the node from being drained.
func (d *drainer) judge(ctx context.Context, p *corev1.Pod) (goes bool, hinders string, err error) {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	_, ofPlan := p.Labels[labelController]
	if mirror || ofPlan || p.Labels[labelName] == protocol.AgentName || d.given(p) {
		return false, "", nil
	}
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return true, "", nil
	}
	owner := metav1.GetControllerOf(p)
	if owner != nil && owner.Kind == "DaemonSet" && owner.APIVersion == "apps/v1" {
		_, err := d.objects.Meta(ctx, "/apis/apps/v1/namespaces/"+p.Namespace+"/daemonsets/"+owner.Name)
		switch {
		case apierrors.IsNotFound(err) && d.spec.Force:
			return true, "", nil
		case err != nil:
			return false, "", fmt.Errorf("read DaemonSet of pod %s/%s: %w", p.Namespace, p.Name, err)
		case !yes(d.spec.IgnoreDaemonSets):
			return false, "pods of DaemonSets (set ignoreDaemonSets)", nil
		}
		return false, "", nil
	}
	if !yes(d.spec.DeleteEmptydirData) && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil }) {
		return false, "pods with emptyDir volumes (set deleteEmptydirData)", nil
	}
	if owner == nil && !d.spec.Force {
		return false, "pods that no controller makes anew (set force)", nil
	}
	return true, "", nil
}

// given says whether a pod has been on its way for so long that it is not waited for.
func (d *drainer) given(p *corev1.Pod) bool {
	limit := time.Duration(d.spec.SkipWaitForDeleteTimeout) * time.Second
	return limit > 0 && p.DeletionTimestamp != nil && time.Since(p.DeletionTimestamp.Time) > limit
}

// yes is an option that is true unless somebody said otherwise.
func yes(option *bool) bool { return option == nil || *option }

// lookAgain forgets pods that have gone.
func (d *drainer) lookAgain(ctx context.Context) error {
	pods, err := d.list(ctx)
	if err != nil {
		return err
	}
	there := map[types.UID]bool{}
	for i := range pods {
		if p := &pods[i]; d.pending[p.UID] != nil && !d.given(p) {
			there[p.UID] = true
			d.pending[p.UID].told = d.pending[p.UID].told || p.DeletionTimestamp != nil
		}
	}
	for uid := range d.pending {
		if !there[uid] {
			delete(d.pending, uid)
		}
	}
	return nil
}

// tell asks the pods to go that are not on their way.
func (d *drainer) tell(ctx context.Context) error {
	for uid, l := range d.pending {
		if l.told || time.Now().Before(l.again) {
			continue
		}
		err := d.evict(ctx, uid, l)
		switch {
		case err == nil:
			l.told, l.refusal = true, ""
		case apierrors.IsNotFound(err), apierrors.IsConflict(err): // another pod has its name
			delete(d.pending, uid)
		case lasting(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return fmt.Errorf("evict pod %s: %w", l.name, err)
		default:
			l.refusal, l.again = "("+protocol.Cut(err.Error(), 120)+")", time.Now().Add(refusedAgain)
		}
	}
	return nil
}

func (d *drainer) evict(ctx context.Context, uid types.UID, l *leaver) error {
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	if d.spec.GracePeriod != nil {
		options.GracePeriodSeconds = new(int64(*d.spec.GracePeriod))
	}
	if d.spec.DisableEviction {
		return d.member.remove(ctx, l.path, options)
	}
	namespace, name, _ := strings.Cut(l.name, "/")
	body, err := json.Marshal(policyv1.Eviction{
		TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, DeleteOptions: &options,
	})
	if err != nil {
		return fmt.Errorf("encode eviction: %w", err)
	}
	return d.member.rest.Post().AbsPath(l.path, "eviction").SetHeader("Content-Type", jsonType).Body(body).Do(ctx).Error()
}
