// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

// waiting returns the status of a pod whose container waits.
func waiting(reason, message string) corev1.PodStatus {
	return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		Name: protocol.AgentName, Image: "registry/drover:v9",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}}
}

func TestAPodThatDoesNotRunSaysWhy(t *testing.T) {
	crashing := waiting("CrashLoopBackOff", "back-off 10s")
	killed := &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}
	crashing.ContainerStatuses[0].LastTerminationState.Terminated = killed
	ended := waiting("CrashLoopBackOff", "back-off 10s")
	ended.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1,
		Reason: "Error", Message: "DROVER_SERVER is not an https URL\x1b[2J: https://user:s3cret@hub"}
	unscheduled := corev1.PodStatus{Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Message: "0/3 nodes are available: Insufficient memory"}}}
	running := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	for name, tt := range map[string]struct {
		status  corev1.PodStatus
		want    string
		started bool
	}{
		"an image that cannot be pulled": {
			waiting("ImagePullBackOff", "not found\x1b[2J"),
			"the image registry/drover:v9 cannot be pulled: ImagePullBackOff: not found [2J", false,
		},
		"an invalid name of an image": {waiting("InvalidImageName", "x"), "cannot be pulled: InvalidImageName", false},
		"no Secret": {
			waiting("CreateContainerConfigError", `secret "x" not found`),
			`CreateContainerConfigError: secret "x" not found`, false,
		},
		"it is still being created": {waiting("ContainerCreating", ""), "", false},
		"it crashes": {
			crashing,
			"CrashLoopBackOff: back-off 10s: it ended with code 137, OOMKilled", true,
		},
		"it ended with a message": {
			ended, "it ended with code 1, Error: DROVER_SERVER is not an https URL [2J: https://***@hub", true,
		},
		"no node has room": {unscheduled, "is not scheduled: 0/3 nodes are available: Insufficient memory", false},
		"it runs":          {running, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			why, started := podTrouble(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: tt.status})
			if started != tt.started || !strings.Contains(why, tt.want) || tt.want == "" && why != "" {
				t.Errorf("%q, started %v, want %q and %v", why, started, tt.want, tt.started)
			}
		})
	}
}

func TestAClusterThatRefusesPodsSaysWhy(t *testing.T) {
	d := &appsv1.Deployment{Status: appsv1.DeploymentStatus{Conditions: []appsv1.DeploymentCondition{{
		Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota: small"}}}}
	if why := refusedPods(d, 0); !strings.Contains(why, "refuses the agent's pod: exceeded quota: small") {
		t.Errorf("it says %q, want the message of the quota", why)
	}
	if why := refusedPods(d, 1); why != "" {
		t.Errorf("with a pod it says %q", why)
	}
}

func TestTheLastErrorOfAnAgentHasAdvice(t *testing.T) {
	failed := func(text string) string {
		return `{"level":"error","msg":"not connected to the hub","retryIn":"1s","error":"` + text + `"}` + "\n"
	}
	for text, want := range map[string]string{
		"dial tcp: lookup hub.example: no such host":                 "DNS does not know the hub",
		"dial tcp 10.0.0.1:443: connect: connection refused":         "that the hub is exposed there",
		"dial tcp 10.0.0.1:443: i/o timeout":                         "check server.urls",
		"x509: certificate has expired or is not yet valid":          "compare the clocks",
		"tls: failed to verify certificate: x509: unknown authority": "a proxy between the cluster and the hub",
	} {
		got := lastErrorOf([]byte(failed("earlier") + failed(text)))
		if !strings.Contains(got, text) || !strings.Contains(got, want) {
			t.Errorf("%s: it says %q, want the advice %q", text, got, want)
		}
	}
	for name, tt := range map[string]struct{ log, want string }{
		"a refusal": {
			failed("x") +
				`{"level":"info","msg":"refused by the hub","reason":"TokenUsed","message":"the token was used"}`,
			"the hub refuses it: TokenUsed: the token was used",
		},
		"an agent that connected since": {failed("x") + `{"level":"info","msg":"connected to the hub"}`, ""},
		"a log that is not JSON":        {"panic: x\n", ""},
		"no log":                        {"", ""},
	} {
		if got := lastErrorOf([]byte(tt.log)); got != tt.want {
			t.Errorf("%s: it says %q, want %q", name, got, tt.want)
		}
	}
}

func TestTheErrorOfADeploymentHasAdviceAndNoPassword(t *testing.T) {
	d := &appsv1.Deployment{}
	if got := notedError(d); got != "" {
		t.Errorf("a Deployment without an error says %q", got)
	}
	d.Annotations = map[string]string{v1.AnnotationAgentLastError: "2027-01-02T15:04:05Z: not connected to the hub: " +
		"dial https://user:s3cret@hub: connect: connection refused\x1b[2J"}
	want := "2027-01-02T15:04:05Z: not connected to the hub: dial https://***@hub: connect: connection refused [2J: " +
		firewalls
	if got := notedError(d); got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}

// The fake log of these pods has no error.
func TestTheReasonIsThePodsStateOrTheAgentsError(t *testing.T) {
	running := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	pod := func(name string, created int64, status corev1.PodStatus) runtime.Object {
		return &corev1.Pod{Status: status, ObjectMeta: metav1.ObjectMeta{Namespace: protocol.AgentNamespace, Name: name,
			CreationTimestamp: metav1.Unix(created, 0), Labels: map[string]string{"app.kubernetes.io/name": protocol.AgentName}}}
	}
	for name, tt := range map[string]struct {
		noted string
		pods  []runtime.Object
		want  string
	}{
		"an agent outside of the cluster": {"down", nil, "its last error: down"},
		"a pod without a log":             {"down", []runtime.Object{pod("a", 1, running)}, "its last error: down"},
		"a pod without a state": {"down", []runtime.Object{pod("a", 1, corev1.PodStatus{})},
			"its last error: down"},
		"an agent that has noted nothing": {"", []runtime.Object{pod("a", 1, running)}, ""},
		"the newest pod does not have its image": {"down", []runtime.Object{pod("a", 2, waiting("ErrImagePull", "x")),
			pod("b", 1, running)}, "the image registry/drover:v9 cannot be pulled: ErrImagePull: x"},
		"a pod that crashes": {"down", []runtime.Object{pod("a", 1, waiting("CrashLoopBackOff", "x"))},
			"pod a does not run: CrashLoopBackOff: x"},
	} {
		t.Run(name, func(t *testing.T) {
			deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: protocol.AgentNamespace,
				Name: protocol.AgentName, Annotations: map[string]string{v1.AnnotationAgentLastError: tt.noted}}}
			member := fake.NewClientset(append(tt.pods, deployment)...)
			d := &diagnosis{member.CoreV1().Pods(protocol.AgentNamespace), member.AppsV1().Deployments(protocol.AgentNamespace)}
			if got := d.explain(t.Context()); got != tt.want && (tt.want == "" || !strings.HasPrefix(got, tt.want)) {
				t.Errorf("it says %q, want %q", got, tt.want)
			}
		})
	}
}

// In TestAnImportSaysWhyTheAgentDoesNotConnect, the member's kubelet reports that it cannot pull the image.
func TestAnImportSaysWhyTheAgentDoesNotConnect(t *testing.T) {
	hub, member := testkit.Shared(t), testkit.StartMember(t)
	workspace := hub.Workspace(t)
	kubeconfig := testkit.Kubeconfig(t, testkit.Context{Name: "hub", Namespace: workspace, Env: hub},
		testkit.Context{Name: "member", Namespace: workspace, Env: member})
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "prod"}}
	hub.Apply(t, cluster)
	cluster.Status.Conditions = []metav1.Condition{{Type: v1.ConditionReady, Status: metav1.ConditionFalse,
		Reason: v1.ReasonAwaitingAgent, Message: "Run in the cluster: the command", LastTransitionTime: metav1.Now()}}
	if err := hub.Client.Status().Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	manifest := `{apiVersion: v1, kind: Namespace, metadata: {name: ` + protocol.AgentNamespace + `}}`
	hub.Apply(t, owned.NewSecret(registration.ApplySecret(cluster, registration.Token{Value: "t"}, registration.Content{
		Command: "x", Manifest: []byte(manifest)})))
	labels := map[string]string{"app.kubernetes.io/name": protocol.AgentName}
	place := metav1.ObjectMeta{Namespace: protocol.AgentNamespace, Name: protocol.AgentName, Labels: labels}
	containers := corev1.PodSpec{Containers: []corev1.Container{{Name: protocol.AgentName, Image: "registry/drover:v9"}}}
	pod := &corev1.Pod{ObjectMeta: place, Spec: containers}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentNamespace}},
		&appsv1.Deployment{ObjectMeta: place, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: containers}}},
		pod,
	} {
		if err := member.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	pod.Status = waiting("ImagePullBackOff", "no such image")
	if err := member.Client.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{NewImport(o)} }
	args := []string{"import", "prod", "--to-context", "member", "--timeout", "5s", "--kubeconfig", kubeconfig}
	code := cli.Run(t.Context(), "test", commands, args, &out, &out)
	_, end, _ := strings.Cut(out.String(), "error: ")
	want := "the image registry/drover:v9 cannot be pulled: ImagePullBackOff: no such image"
	if code != cli.ExitError || !strings.Contains(end, want) {
		t.Errorf("exit code %d: %s, want the error to name the image", code, out.String())
	}
	if strings.Contains(out.String(), "Run in the cluster") {
		t.Errorf("got %s, want no advice to run the command that import has just run", out.String())
	}
}

func TestAnErrorOfTheAgentDoesNotShowThePasswordOfAProxy(t *testing.T) {
	for _, user := range []string{"user:s3cret", "s3cret", "user:s3cret@x", "user:s3/cret", "user:x/s3cret@x"} {
		text := `proxy http://` + user + `@proxy:3128/x is down`
		for _, line := range []string{
			`{"level":"error","msg":"connect","error":"` + text + `"}`,
			`{"level":"error","msg":"` + text + `","error":"x"}`,
			`{"level":"info","msg":"refused by the hub","reason":"` + text + `","message":"x"}`,
			`{"level":"info","msg":"refused by the hub","reason":"x","message":"` + text + `"}`,
		} {
			got := lastErrorOf([]byte(line))
			leaked := strings.Contains(got, "s3") || strings.Contains(got, "cret")
			if leaked || !strings.Contains(got, "proxy http://***@proxy:3128/x is down") {
				t.Errorf("the error is %q, want the address of the proxy without its password", got)
			}
		}
	}
}
