// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

const (
	oldImage = "registry.test/drover:old"
	newImage = "registry.test/drover:new"
	// firstWave is the member in the first wave, which is the only member that can pull the new image.
	firstWave = "alpha"
	// revisionOf is the annotation in which the Deployment controller counts the templates of a Deployment.
	revisionOf = "deployment.kubernetes.io/revision"
)

// stages is a hub whose agents are upgraded to a new image in two waves. The agents are processes. Their Deployments
// are real and have a real controller.
type stages struct {
	*system
	image   atomic.Value // the hub's default, from the manager's next start on
	members map[string]*framework.Plane
}

func TestLong_AgentsAreUpgradedInStages(t *testing.T) {
	t.Parallel()
	f := startStages(t)
	var failed, waiting string
	var before map[string]string
	t.Run("an image that the second wave cannot pull stops the upgrade there, and the first wave keeps it", func(t *testing.T) {
		before = f.revisions(t)
		f.restartWith(t, newImage)
		failed, waiting = f.awaitStop(t)
		if up := f.cluster(t, cluster(firstWave)).Status.Agent; up.Image != newImage || up.Upgrade == nil || up.Upgrade.Complete == nil || up.Upgrade.Wave != "first" {
			t.Errorf("the agent of the first wave is %+v, want one that is complete with the new image", up)
		}
		if up := f.cluster(t, cluster(waiting)).Status.Agent; up.Image != oldImage || up.Upgrade != nil {
			t.Errorf("the agent that has not begun is %+v", up)
		}
		for name := range f.members {
			if !framework.Ready(f.cluster(t, cluster(name))) {
				t.Errorf("%s is not Ready", name)
			}
		}
		now := f.revisions(t)
		if now[waiting] != before[waiting] || now[firstWave] == before[firstWave] || now[failed] == before[failed] {
			t.Errorf("revisions of Deployments are %v, before %v: want one of %s that did not change, and others of %s and %s", now, before, waiting, firstWave, failed)
		}
	})
	if t.Failed() {
		t.Fatalf("manager log:\n%s", tail(f.hub.Manager.LogFile()))
	}
	t.Run("a hub that goes back restarts the first wave's agent once and no other, also after one more restart", func(t *testing.T) {
		stopped := f.revisions(t)
		f.restartWith(t, oldImage)
		f.awaitAll(t, oldImage)
		back := f.revisions(t)
		if back[failed] != stopped[failed] || back[waiting] != before[waiting] {
			t.Errorf("revisions of Deployments are %v, before %v: the agents of %s and %s had the old image and were restarted", back, stopped, failed, waiting)
		}
		if want := increased(t, stopped[firstWave]); back[firstWave] != want {
			t.Errorf("the Deployment of %s is at revision %s, want %s: one restart", firstWave, back[firstWave], want)
		}
		f.restartWith(t, oldImage)
		f.awaitAll(t, oldImage)
		for name, revision := range f.revisions(t) {
			if revision != back[name] {
				t.Errorf("the Deployment of %s went from revision %s to %s when the same manager began again", name, back[name], revision)
			}
		}
	})
}

func startStages(t *testing.T) *stages {
	t.Helper()
	f := &stages{members: map[string]*framework.Plane{}}
	f.image.Store(oldImage)
	f.system = startWith(t, f.startHub)
	f.members[firstWave] = f.member
	for _, name := range []string{"beta", "gamma"} {
		plane, err := f.plane(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = plane.Kill() })
		f.members[name] = plane
	}
	for name, plane := range f.members {
		_, agent := f.imported(t, name, plane, protocol.AgentNamespace)
		logAtEnd(t, agent)
	}
	label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"ring":"first"}}}`))
	if err := f.hub.Client.Patch(t.Context(), f.cluster(t, cluster(firstWave)), label); err != nil {
		t.Fatal(err)
	}
	f.awaitAll(t, oldImage)
	return f
}

// startHub starts a hub that upgrades one agent at a time and tolerates no failures.
func (f *stages) startHub(s *system, t *testing.T) {
	t.Helper()
	plane, err := s.plane("hub", lab.User{Name: "demo", Token: demoToken}, lab.User{Name: "stranger", Token: strangerToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Kill() })
	s.hub, err = framework.InstallReplicas(within(t, 2*time.Minute), plane, framework.Layout{Replicas: 1, Configure: func(c *config.Config) {
		c.Agent.Image = f.image.Load().(string)
		c.Agent.Rollout = config.Rollout{MaxConcurrentClusters: new(intstr.FromInt32(1)), MaxFailedClusters: new(intstr.FromInt32(0)),
			Waves: []config.Wave{{Name: "first", ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"ring": "first"}}}}}
	}})
	t.Cleanup(func() { _ = s.hub.StopManagers() })
	if err != nil {
		t.Fatal(err)
	}
}

// restartWith restarts the manager with another default image for agents.
func (f *stages) restartWith(t *testing.T, image string) {
	t.Helper()
	f.image.Store(image)
	if err := f.hub.Manager.Stop(within(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	f.restartManager(t)
}

// until does the kubelets' work until check returns nil.
func (f *stages) until(t *testing.T, limit time.Duration, check func(context.Context) error) {
	t.Helper()
	testkit.Eventually(t, limit, func(ctx context.Context) error {
		for name, plane := range f.members {
			if err := f.play(ctx, name, plane); err != nil {
				return err
			}
		}
		return check(ctx)
	})
}

// play makes the pods of a member's agent run if their image can be pulled there. It shortens the deadline of the
// Deployment, because two minutes are too long for a test.
func (f *stages) play(ctx context.Context, name string, plane *framework.Plane) error {
	pods := &corev1.PodList{}
	if err := plane.Client.List(ctx, pods, client.InNamespace(protocol.AgentNamespace)); err != nil {
		return err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		switch image := p.Spec.Containers[0].Image; {
		case !p.DeletionTimestamp.IsZero() || p.Status.Phase == corev1.PodRunning || len(p.Status.ContainerStatuses) > 0:
			continue
		case image == newImage && name != firstWave:
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: p.Spec.Containers[0].Name, Image: image,
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
			patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"progressDeadlineSeconds":3}}`))
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: protocol.AgentNamespace, Name: protocol.AgentName}}
			if err := plane.Client.Patch(ctx, d, patch); err != nil {
				return err
			}
		default:
			p.Status.Phase = corev1.PodRunning
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		}
		if err := plane.Client.Status().Update(ctx, p); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

// awaitAll waits until all agents have the image that the hub expects.
func (f *stages) awaitAll(t *testing.T, image string) {
	t.Helper()
	f.until(t, time.Minute, func(ctx context.Context) error {
		for name := range f.members {
			c := &v1.Cluster{}
			if err := f.hub.Client.Get(ctx, cluster(name), c); err != nil {
				return err
			}
			said := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionAgentUpToDate)
			if !framework.Ready(c) || said == nil || said.Reason != v1.ReasonAgentUpdated || c.Status.Agent.Image != image || c.Status.Agent.WantedImage != "" {
				return fmt.Errorf("%s has %+v and the agent %+v, want image %s", name, said, c.Status.Agent, image)
			}
		}
		return nil
	})
}

// awaitStop waits until the hub reports that it has stopped the upgrade. It returns the member in which the plan failed
// and the member that has not begun.
func (f *stages) awaitStop(t *testing.T) (failed, waiting string) {
	t.Helper()
	f.until(t, time.Minute, func(ctx context.Context) error {
		failed, waiting = "", ""
		for name := range f.members {
			c := &v1.Cluster{}
			if err := f.hub.Client.Get(ctx, cluster(name), c); err != nil {
				return err
			}
			switch said := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionAgentUpToDate); {
			case said != nil && said.Reason == v1.ReasonAgentRolledBack:
				failed = name
			case said != nil && said.Reason == v1.ReasonAgentWaiting:
				waiting = name
			}
		}
		if failed == "" || waiting == "" || failed == firstWave || waiting == firstWave {
			return fmt.Errorf("the upgrade failed in %q and has not begun in %q", failed, waiting)
		}
		out, err := f.hub.Kubectl(ctx, nil, "get", "events.events.k8s.io", "-o", "wide", "--field-selector", "reason="+v1.ReasonAgentRolloutStopped)
		if err == nil && !strings.Contains(out, "default/"+failed) {
			err = errors.New("no event says that the upgrade has stopped")
		}
		return err
	})
	return failed, waiting
}

// revisions returns the revision of each member's Deployment.
func (f *stages) revisions(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for name, plane := range f.members {
		d := &appsv1.Deployment{}
		if err := plane.Client.Get(t.Context(), types.NamespacedName{Namespace: protocol.AgentNamespace, Name: protocol.AgentName}, d); err != nil {
			t.Fatal(err)
		}
		found[name] = d.Annotations[revisionOf]
	}
	return found
}

// increased returns the next revision.
func increased(t *testing.T, revision string) string {
	t.Helper()
	var n int
	if _, err := fmt.Sscan(revision, &n); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(n + 1)
}
