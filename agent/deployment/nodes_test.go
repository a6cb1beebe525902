// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/agent/kube"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// nodeAgentsOf returns the Deployment that the hub builds from spec.agent, and the DaemonSet that accompanies it.
func nodeAgentsOf(t *testing.T, agent v1.Agent) (*appsv1.Deployment, *appsv1.DaemonSet) {
	t.Helper()
	agent.NodeAgent = true
	d := decoded(t, fromHub(t, "drover:v7", agent))
	return d, daemonSet(d)
}

func TestNodeAgentsFollowTheDeployment(t *testing.T) {
	t.Parallel()
	required := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
		{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "trusted", Operator: corev1.NodeSelectorOpExists}}}}}
	d, set := nodeAgentsOf(t, v1.Agent{
		NodeSelector: map[string]string{"pool": "ours"}, PriorityClassName: "high",
		ImagePullSecrets: []v1.PullSecret{{Name: "registry"}},
		Env:              []v1.AgentEnv{{Name: "HTTPS_PROXY", SecretKey: "proxy"}},
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: required}, PodAntiAffinity: &corev1.PodAntiAffinity{}},
		Resources: &v1.AgentResources{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("5m")}},
	})
	pod, from := set.Spec.Template.Spec, d.Spec.Template.Spec
	main, want := pod.Containers[0], from.Containers[0]
	if main.Image != "drover:v7" ||
		!slices.EqualFunc(main.Env, want.Env, func(a, b corev1.EnvVar) bool { return a.String() == b.String() }) ||
		main.Resources.Requests.Cpu().String() != "5m" || pod.ServiceAccountName != from.ServiceAccountName {
		t.Errorf("got the container %v, want image, environment, resources and account of the Deployment", main)
	}
	if pod.NodeSelector["pool"] != "ours" || pod.NodeSelector[corev1.LabelOSStable] != "linux" ||
		pod.PriorityClassName != "high" || len(pod.ImagePullSecrets) != 1 {
		t.Errorf("got the pod %v, want nodes, priority and image of the spec, and only Linux nodes", pod)
	}
	if a := pod.Affinity; a == nil || a.PodAntiAffinity != nil ||
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.String() != required.String() {
		t.Errorf("got the affinity %v, want only the required node affinity of the Deployment", a)
	}
	if !slices.Equal(main.Command, []string{"/drover-agent", "node"}) {
		t.Errorf("got the command %q, want the agent's as a node agent", main.Command)
	}
	if _, plain := nodeAgentsOf(t, v1.Agent{}); plain.Spec.Template.Spec.Affinity != nil {
		t.Errorf("got the affinity %v, want none from a preference of the Deployment", plain.Spec.Template.Spec.Affinity)
	}
}

func TestNodeAgentsRunOnEveryNodeWithoutUsingItsResources(t *testing.T) {
	t.Parallel()
	d, set := nodeAgentsOf(t, v1.Agent{})
	pod := set.Spec.Template.Spec
	if !pod.HostNetwork || pod.DNSPolicy != corev1.DNSDefault {
		t.Errorf("got host network %t and DNS %s, want the node's network and resolver: those of pods may be broken",
			pod.HostNetwork, pod.DNSPolicy)
	}
	for _, taint := range []corev1.Taint{
		{Key: "a", Value: "b", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node.kubernetes.io/network-unavailable", Effect: corev1.TaintEffectNoExecute},
	} {
		if !slices.ContainsFunc(pod.Tolerations,
			func(t corev1.Toleration) bool { return t.ToleratesTaint(logr.Discard(), &taint, false) }) {
			t.Errorf("the taint %v is not tolerated, want it tolerated", taint)
		}
	}
	for _, volume := range pod.Volumes {
		if volume.EmptyDir == nil {
			t.Errorf("got the volume %s of the node, want none", volume.Name)
		}
	}
	c := pod.Containers[0]
	if len(c.Ports) > 0 || c.LivenessProbe != nil || c.ReadinessProbe != nil {
		t.Errorf("got ports %v or probes, want none: they would be ports of the node", c.Ports)
	}
	if s := c.SecurityContext; s == nil || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation ||
		!slices.Contains(s.Capabilities.Drop, "ALL") || !*pod.SecurityContext.RunAsNonRoot {
		t.Errorf("got the security contexts %v, %v, want no root, a read-only file system and no capability",
			c.SecurityContext,
			pod.SecurityContext)
	}
	if c.Resources.Requests.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero() {
		t.Errorf("got resources %v, want requests and a limit", c.Resources)
	}
	podLabels := labels.Set(set.Spec.Template.Labels)
	ours, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	theirs, err2 := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil || err2 != nil || !ours.Matches(podLabels) || theirs.Matches(podLabels) {
		t.Errorf("got labels %v, want none that match the Deployment's selector", podLabels)
	}
	if set.Labels[protocol.LabelName] != protocol.AgentName {
		t.Errorf("got labels %v, want those with which an uninstallation finds it", set.Labels)
	}
}

func TestNodeAgentsWithoutPods(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status  appsv1.DaemonSetStatus
		applied time.Duration
		want    string
	}{
		"a member without nodes": {appsv1.DaemonSetStatus{}, time.Hour, ""},
		"nodes, and a pod on one": {appsv1.DaemonSetStatus{DesiredNumberScheduled: 3, CurrentNumberScheduled: 1,
			NumberReady: 1}, time.Hour, ""},
		"nodes, and the namespace refuses pods": {appsv1.DaemonSetStatus{DesiredNumberScheduled: 3}, time.Minute,
			"none of 3 pods exists"},
		"pods that start": {appsv1.DaemonSetStatus{DesiredNumberScheduled: 3, CurrentNumberScheduled: 3}, 4 * time.Minute,
			""},
		"pods that do not start": {appsv1.DaemonSetStatus{DesiredNumberScheduled: 3, CurrentNumberScheduled: 3},
			5 * time.Minute, "none of 3 pods is ready"},
	} {
		if got := withoutPods(tt.status, tt.applied); !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// TestDeploymentIsReportedEvenIfNodeAgentsFail checks that the Deployment is reported even if the API server
// rejects the DaemonSet for a while.
func TestDeploymentIsReportedEvenIfNodeAgentsFail(t *testing.T) {
	t.Parallel()
	live, _ := nodeAgentsOf(t, v1.Agent{})
	replicas := replicasOf(live)
	live.Status = appsv1.DeploymentStatus{Replicas: replicas, UpdatedReplicas: replicas, AvailableReplicas: replicas}
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(r.URL.Path, "/daemonsets/"):
			http.Error(w, "the webhook does not answer", http.StatusInternalServerError)
		case strings.Contains(r.URL.Path, "/deployments/"):
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(live)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(api.Close)
	c, err := kube.New(&rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	k := New(Options{
		Deployment: c.Deployment("x", "agent"), DaemonSet: c.DaemonSet("x", "nodes"), NodeLease: c.Lease("x", "nodes"),
		Direct: c.DaemonSet("x", "direct"), Secrets: c.Secrets("x"),
		Nodes: func() (int32, bool) { return 0, false }, Changed: func() {}, Log: logr.Discard(),
	})
	if _, err := k.step(t.Context()); err == nil {
		t.Error("got no error, want the error of the DaemonSet, so that it is retried")
	}
	if r := k.Report(); r == nil || !r.RolledOut || r.NodeAgents == "" {
		t.Errorf("got the report %+v, want a rolled-out Deployment and why there are no node agents", r)
	}
}

// TestNodeAgentsLeaveNoLease runs against an API server that contains the DaemonSet and the Lease of node agents.
func TestNodeAgentsLeaveNoLease(t *testing.T) {
	t.Parallel()
	var requests []string
	left := map[string]bool{"/apis/apps/v1/namespaces/x/daemonsets/nodes": true,
		"/apis/coordination.k8s.io/v1/namespaces/x/leases/nodes": true}
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r.Method+" "+path.Base(path.Dir(r.URL.Path)))
		w.Header().Set("Content-Type", "application/json")
		status := metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}
		switch {
		case r.Method == http.MethodPatch:
			left[r.URL.Path] = true
			_, _ = io.Copy(w, r.Body)
			return
		case !left[r.URL.Path]:
			status.Status, status.Reason, status.Code = metav1.StatusFailure, metav1.StatusReasonNotFound, http.StatusNotFound
			w.WriteHeader(http.StatusNotFound)
		}
		delete(left, r.URL.Path)
		_ = json.NewEncoder(w).Encode(status)
	}))
	t.Cleanup(api.Close)
	c, err := kube.New(&rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	on, _ := nodeAgentsOf(t, v1.Agent{})
	replicas := replicasOf(on)
	on.Status = appsv1.DeploymentStatus{Replicas: replicas, UpdatedReplicas: replicas, AvailableReplicas: replicas}
	off := on.DeepCopy()
	delete(off.Annotations, v1.AnnotationNodeAgent)

	nodes, start := daemonSetKeeper{wanted: nodeAgents, client: c.DaemonSet("x", "nodes"), lease: c.Lease("x", "nodes")},
		time.Now()
	for _, step := range []struct {
		what  string
		after time.Duration
		live  *appsv1.Deployment
		want  string // requests
		again time.Duration
	}{
		{"they are turned off", 0, off, "DELETE daemonsets", time.Minute},
		{"their pods may still run", 30 * time.Second, off, "", 30 * time.Second},
		{"they are turned on again", 40 * time.Second, on, "PATCH daemonsets", time.Minute},
		{"and off", 50 * time.Second, off, "DELETE daemonsets", time.Minute},
		{"their pods may still run, again", 109 * time.Second, off, "", time.Second},
		{"their pods have ended", 110 * time.Second, off, "DELETE daemonsets, DELETE leases", 0},
		{"nothing is left", time.Hour, off, "", 0},
	} {
		requests = nil
		again, err := nodes.keep(t.Context(), step.live, start.Add(step.after))
		if got := strings.Join(requests, ", "); err != nil || got != step.want || again != step.again {
			t.Errorf("%s: got %q, again after %s, and the error %v; want %q and %s", step.what, got, again, err, step.want,
				step.again)
		}
	}
	if len(left) > 0 {
		t.Errorf("got the remaining objects %v, want none", left)
	}
}
