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

	"github.com/drover-dev/drover/agent/kube"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
)

// The agent does not use the drain package from k8s.io/kubectl, which would make the agent three times as large, both
// in memory and on disk. Both implementations select the same pods to evict and the same pods that block a drain;
// test/drain compares them. Only this implementation retries while the API server is unreachable, and skips the agent
// and the pods of plans.

const (
	defaultDrainTimeout = 15 * time.Minute // the default in the schema of Plans
	// lookAfter is how long to wait before pods are listed again after a failed watch.
	lookAfter = time.Second
	// named is the maximum number of pods that an error names.
	named = 3

	labelName = "app.kubernetes.io/name"
)

// drain identifies one attempt to drain a node for a plan.
type drain struct {
	node, plan, hash string
	attempt          int32
	spec             v1.Drain
}

// drainer drains one node.
type drainer struct {
	node    string
	spec    v1.Drain
	member  apiClient
	objects *kube.Objects
	home    string // namespace of the agent
	pending map[types.UID]*leavingPod
	version string // resource version from which to watch pods
}

// Drain drains a node in the same way as a Plan does. The error says what blocks the drain. The drain is canceled when
// ctx is done.
func Drain(ctx context.Context, o Options, node string, spec v1.Drain) error {
	return (&drainer{node: node, spec: spec, member: apiClient{o.Client}, objects: o.Objects,
		home: o.Namespace}).run(ctx)
}

// run drains the node. The error says what blocks the drain. The drain is canceled when ctx is done.
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
		if err := d.evictDue(ctx); err != nil {
			return err
		}
		err := d.await(ctx)
		if ctx.Err() != nil {
			return d.timeoutError(timeout)
		}
		if lasting(err) {
			return err
		}
	}
	return nil
}

// begin finds the pods to evict. It retries while the API server is unreachable, because the upgrade may restart the
// API server.
func (d *drainer) begin(ctx context.Context, timeout time.Duration) error {
	for {
		err := d.findPods(ctx)
		switch {
		case err == nil || lasting(err):
			return err
		case !await.Time(ctx, lookAfter):
			return fmt.Errorf("drain node %s: pods are not known after %s: %w", d.node, timeout, err)
		}
	}
}

// obstacle is the reason why a node cannot be drained.
type obstacle string

// Error returns the reason.
func (o obstacle) Error() string { return string(o) }

// lasting reports whether an error is permanent, so that a retry cannot succeed.
func lasting(err error) bool {
	_, refused := refusedFor(err)
	return refused || errors.As(err, new(obstacle))
}

// timeoutError returns an error that names the pods that were left when the drain timed out.
func (d *drainer) timeoutError(timeout time.Duration) error {
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

func (d *drainer) ofNode() string { return "spec.nodeName=" + d.node }

// selector returns the label selector for the pods to evict.
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

// findPods finds the pods to evict. If any pod blocks the drain, findPods returns an error and nothing is evicted.
func (d *drainer) findPods(ctx context.Context) error {
	selector, err := d.selector()
	if err != nil {
		return err
	}
	pods, err := d.list(ctx, selector)
	if err != nil {
		return err
	}
	d.pending = map[types.UID]*leavingPod{}
	obstacles := map[string][]string{}
	for i := range pods {
		p := &pods[i]
		name := p.Namespace + "/" + p.Name
		goes, hinders, err := d.classify(ctx, p)
		switch {
		case err != nil:
			return err
		case hinders != "":
			obstacles[hinders] = append(obstacles[hinders], name)
		case goes:
			d.pending[p.UID] = &leavingPod{namespace: p.Namespace, name: p.Name, terminates: terminatesAt(p)}
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

// classify reports whether to evict a pod. If the pod blocks the drain, classify returns the reason why.
func (d *drainer) classify(ctx context.Context, p *corev1.Pod) (goes bool, hinders string, err error) {
	if d.ours(p) || d.abandoned(terminatesAt(p)) {
		return false, "", nil
	}
	finished := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	owner := metav1.GetControllerOf(p)
	if !finished && owner != nil && owner.Kind == "DaemonSet" && owner.APIVersion == "apps/v1" {
		err := d.daemonSet(ctx, p.Namespace, owner.Name)
		switch {
		case apierrors.IsNotFound(err) && d.spec.Force: // the pod is evicted like the pod of any other controller
		case apierrors.IsNotFound(err):
			return false, "pods whose DaemonSet no longer exists (set force)", nil
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
	case !yes(d.spec.DeleteEmptydirData) &&
		slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil }):
		return false, "pods with emptyDir volumes (set deleteEmptydirData)", nil
	case owner == nil && !d.spec.Force:
		return false, "pods that no controller creates again (set force)", nil
	}
	return true, "", nil
}

// daemonSet returns an error if there is no DaemonSet with the given name. The name comes from the pod, so an invalid
// name must not become part of a path.
func (d *drainer) daemonSet(ctx context.Context, namespace, name string) error {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return apierrors.NewNotFound(schema.GroupResource{Group: "apps", Resource: "daemonsets"},
			protocol.Cut(name, maxCause))
	}
	_, err := d.objects.Meta(ctx, "/apis/apps/v1/namespaces/"+namespace+"/daemonsets/"+name)
	return err
}

// ours reports whether a pod belongs to a plan or to the agent. Such pods must keep running during the drain. Labels in
// other namespaces are ignored, because any user could set them to keep a pod on its node.
func (d *drainer) ours(p *corev1.Pod) bool {
	_, ofPlan := p.Labels[labelController]
	return p.Namespace == v1.PlansNamespace && ofPlan || p.Namespace == d.home && p.Labels[labelName] == protocol.AgentName
}

// yes returns the value of an option that is true by default.
func yes(option *bool) bool { return option == nil || *option }
