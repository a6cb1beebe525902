// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// The drain is ours, and not that of k8s.io/kubectl: with it the agent would be three times as large, in memory as on disk. Which pods go, and
// which keep a node from being drained, is as there: test/drain compares the two. Ours alone tries again when the API server is away, and spares
// the agent and pods of plans.

const (
	defaultDrainTimeout = 15 * time.Minute // as the schema has it
	// lookAfter is how long to wait before looking again when the API server did not tell of pods.
	lookAfter = time.Second
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
	home    string // namespace of the agent
	pending map[types.UID]*leaver
	version string // of what is known of the node's pods
}

// Drain empties a node once, as for a plan, or says what keeps it from being drained. ctx ends it early.
func Drain(ctx context.Context, o Options, node string, spec v1.Drain) error {
	return (&drainer{drain: drain{node: node, spec: spec}, member: member{o.Client}, objects: o.Objects, home: o.Namespace}).run(ctx)
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
	for d.waits() {
		if err := d.tell(ctx); err != nil {
			return err
		}
		err := d.await(ctx)
		if ctx.Err() != nil {
			return d.late(timeout)
		}
		if lasting(err) {
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
		case !pause(ctx, lookAfter):
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
		left = append(left, strings.TrimSpace(l.String()+" "+l.refusal))
	}
	return fmt.Errorf("drain node %s: pods still there after %s: %s", d.node, timeout, some(left))
}

func some(names []string) string {
	slices.Sort(names)
	if len(names) > named {
		names = append(names[:named:named], "…")
	}
	return strings.Join(names, ", ")
}

// list lists the node's pods that a label selector selects.
func (d *drainer) list(ctx context.Context, selector string) ([]corev1.Pod, error) {
	options := metav1.ListOptions{FieldSelector: d.ofNode(), LabelSelector: selector, Limit: pageSize}
	var all []corev1.Pod
	for {
		page, err := d.member.pods(ctx, pathAllPods, options)
		if err != nil {
			return nil, fmt.Errorf("list pods of node %s: %w", d.node, err)
		}
		all = append(all, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			d.version = page.ResourceVersion
			return all, nil
		}
	}
}

// ofNode selects the node's pods by field.
func (d *drainer) ofNode() string { return "spec.nodeName=" + d.node }

// selector selects by label the pods that are looked at.
func (d *drainer) selector() (string, error) {
	if d.spec.PodSelector == nil {
		return "", nil
	}
	selector, err := metav1.LabelSelectorAsSelector(d.spec.PodSelector)
	if err != nil {
		return "", obstacle("drain node " + d.node + ": read podSelector: " + err.Error())
	}
	return selector.String(), nil
}

// look finds the pods that are to go. Nothing is evicted while one keeps the node from being drained.
func (d *drainer) look(ctx context.Context) error {
	selector, err := d.selector()
	if err != nil {
		return err
	}
	pods, err := d.list(ctx, selector)
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
			d.pending[p.UID] = &leaver{namespace: p.Namespace, name: p.Name, leaves: leaves(p)}
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
	if d.ours(p) || d.given(leaves(p)) {
		return false, "", nil
	}
	finished := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	owner := metav1.GetControllerOf(p)
	if !finished && owner != nil && owner.Kind == "DaemonSet" && owner.APIVersion == "apps/v1" {
		err := d.daemonSet(ctx, p.Namespace, owner.Name)
		switch {
		case apierrors.IsNotFound(err) && d.spec.Force: // as any other that a controller made
		case apierrors.IsNotFound(err):
			return false, "pods whose DaemonSet is no more (set force)", nil
		case err != nil:
			return false, "", fmt.Errorf("read DaemonSet of pod %s/%s: %w", p.Namespace, p.Name, err)
		case !yes(d.spec.IgnoreDaemonSets):
			return false, "pods of DaemonSets (set ignoreDaemonSets)", nil
		default:
			return false, "", nil
		}
	}
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case mirror:
		return false, "", nil
	case finished:
		return true, "", nil
	case !yes(d.spec.DeleteEmptydirData) && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil }):
		return false, "pods with emptyDir volumes (set deleteEmptydirData)", nil
	case owner == nil && !d.spec.Force:
		return false, "pods that no controller makes anew (set force)", nil
	}
	return true, "", nil
}

// daemonSet fails if there is no DaemonSet of that name. Whoever made the pod named it: what is no name is not made part of a path.
func (d *drainer) daemonSet(ctx context.Context, namespace, name string) error {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return apierrors.NewNotFound(schema.GroupResource{Group: "apps", Resource: "daemonsets"}, protocol.Cut(name, maxCause))
	}
	_, err := d.objects.Meta(ctx, "/apis/apps/v1/namespaces/"+namespace+"/daemonsets/"+name)
	return err
}

// ours says whether a pod is of a plan or of the agent, which are to bring the node to its end. In other namespaces a label says nothing:
// anybody could keep a pod on its node with it.
func (d *drainer) ours(p *corev1.Pod) bool {
	_, ofPlan := p.Labels[labelController]
	return p.Namespace == v1.PlansNamespace && ofPlan || p.Namespace == d.home && p.Labels[labelName] == protocol.AgentName
}

// yes is an option that is true unless somebody said otherwise.
func yes(option *bool) bool { return option == nil || *option }
