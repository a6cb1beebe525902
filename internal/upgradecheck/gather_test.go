// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upgradecheck_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/upgradecheck"
	"github.com/drover-dev/drover/test/testkit"
)

// target is a version that API servers of any supported version can be upgraded to, as far as the version matters.
const target = "v1.37.0"

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	m.Run()
}

// fixture is a cluster that is safe to upgrade, except for its API server's version.
type fixture struct {
	*testkit.Env
	namespace string
}

// findings gathers the facts with the given rights. It returns the findings of all checks that do not compare versions,
// because the test cluster has only one version.
func (f *fixture) findings(t *testing.T, config *rest.Config, plan *v1.Plan) []upgradecheck.Finding {
	t.Helper()
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	goal, applies := upgradecheck.TargetOf(plan, plan.Spec.Version)
	if !applies {
		t.Fatalf("the checks do not apply to %s", plan.Spec.Version)
	}
	facts, err := upgradecheck.Gather(t.Context(), upgradecheck.Source{Client: client, Direct: true}, &goal)
	if err != nil {
		t.Fatal(err)
	}
	if facts.CertificateExpires.IsZero() || !strings.HasPrefix(facts.Version, "v1.") {
		t.Errorf("the certificate expires at %s and the version is %q, want both to be known", facts.CertificateExpires,
			facts.Version)
	}
	for i := range facts.Nodes { // kubelets of the same version as the API server
		facts.Nodes[i].Kubelet = facts.Version
	}
	return slices.DeleteFunc(upgradecheck.Check(facts, &goal), func(f upgradecheck.Finding) bool {
		return f.Check == upgradecheck.CheckKubernetesVersion || f.Check == upgradecheck.CheckKubeletVersion
	})
}

// expect compares the findings with lines of the form "check object cause".
func expect(t *testing.T, got []upgradecheck.Finding, want ...string) {
	t.Helper()
	matches := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		matches = matches && strings.Contains(got[i].Check+" "+got[i].Object+" "+got[i].Cause, want[i])
	}
	if !matches {
		t.Errorf("got %d findings:\n%+v\nwant:\n%s", len(got), got, strings.Join(want, "\n"))
	}
}

func drainingPlan() *v1.Plan {
	plan := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Name: "k8s"}}
	plan.Spec.Version = target
	plan.Spec.Drain = &v1.Drain{}
	return plan
}

// node creates a node that is ready.
func (f *fixture) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, "role": name}}}
	f.Apply(t, n)
	n.Status = corev1.NodeStatus{
		Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"),
			corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourcePods: resource.MustParse("10")},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.36.0"},
	}
	f.status(t, n)
	testkit.Update(t, f.Client, n, func(n *corev1.Node) { n.Spec.Taints = nil }) // the API server taints new nodes
	return n
}

func (f *fixture) status(t *testing.T, object client.Object) {
	t.Helper()
	if err := f.Client.Status().Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// pod creates a pod that is ready.
func (f *fixture) pod(t *testing.T, name, node, cpu string, change func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: name,
		Labels: map[string]string{"app": "web"}}}
	p.Spec = corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "x",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}}
	if change != nil {
		change(p)
	}
	f.Apply(t, p)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	f.status(t, p)
	return p
}

func (f *fixture) remove(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		if err := f.Client.Delete(t.Context(), object, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFactsOfARealAPIServer(t *testing.T) {
	f := &fixture{Env: testkit.StartMember(t)}
	f.namespace = f.Workspace(t)
	f.Apply(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "default"}})
	first := f.node(t, "first")
	f.node(t, "second")
	f.pod(t, "web", "first", "1", nil)
	for name, test := range map[string]func(*testing.T, *fixture){
		"budgets": testBudgets, "webhooks": testWebhooks, "capacity": testCapacity, "rights": testRights,
	} {
		t.Run(name, func(t *testing.T) {
			test(t, f)
			expect(t, f.findings(t, f.Config, drainingPlan()))
		})
	}
	t.Run("nodes", func(t *testing.T) {
		first.Status.Conditions[0].Status = corev1.ConditionUnknown
		if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(first), first); err != nil {
			t.Fatal(err)
		}
		first.Status.Conditions[0].Status = corev1.ConditionUnknown
		f.status(t, first)
		expect(t, f.findings(t, f.Config, drainingPlan()), "NodesReady node/first it is not ready")
	})
}

func testBudgets(t *testing.T, f *fixture) {
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "web"}}
	one := intstr.FromInt32(1)
	budget.Spec = policyv1.PodDisruptionBudgetSpec{MinAvailable: &one,
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}
	f.Apply(t, budget)
	budget.Status = policyv1.PodDisruptionBudgetStatus{CurrentHealthy: 1, DesiredHealthy: 1, ExpectedPods: 1}
	f.status(t, budget)
	blocked := "DisruptionBudgets poddisruptionbudget/" + f.namespace + "/web it allows no disruption"
	plan := drainingPlan()
	expect(t, f.findings(t, f.Config, plan), blocked)

	plan.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"role": "second"}}
	expect(t, f.findings(t, f.Config, plan))
	plan.Spec.NodeSelector, plan.Spec.Drain.DisableEviction = nil, true
	expect(t, f.findings(t, f.Config, plan))
	plan.Spec.Drain = nil
	expect(t, f.findings(t, f.Config, plan))

	budget.Status.DisruptionsAllowed = 1
	f.status(t, budget)
	expect(t, f.findings(t, f.Config, drainingPlan()))

	other := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "other"}}
	other.Spec = policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: &metav1.LabelSelector{}}
	f.Apply(t, other)
	other.Status.DisruptionsAllowed = 1
	f.status(t, other)
	expect(t, f.findings(t, f.Config, drainingPlan()),
		"DisruptionBudgets pod/"+f.namespace+"/web several PodDisruptionBudgets select it")
	f.remove(t, budget, other)
}

func testWebhooks(t *testing.T, f *fixture) {
	none, fail, ignore := admissionv1.SideEffectClassNone, admissionv1.Fail, admissionv1.Ignore
	port := int32(443)
	configuration := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "policy"}}
	for name, policy := range map[string]*admissionv1.FailurePolicyType{"a.example.com": &fail, "b.example.com": &ignore} {
		configuration.Webhooks = append(configuration.Webhooks, admissionv1.ValidatingWebhook{
			Name: name, FailurePolicy: policy, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{
				Namespace: f.namespace, Name: "policy", Port: &port}},
			// The selector ensures that the webhook rejects no request of other tests.
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"webhooks": "tested"}},
			Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/*"}}}},
		})
	}
	f.Apply(t, configuration)
	prefix := "AdmissionWebhooks validatingwebhookconfiguration/policy the webhook a.example.com rejects requests when " +
		"it cannot be called, and "
	expect(t, f.findings(t, f.Config, drainingPlan()), prefix+"its Service "+f.namespace+"/policy does not exist")

	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "policy"}}
	service.Spec.Ports = []corev1.ServicePort{{Port: port}}
	f.Apply(t, service)
	expect(t, f.findings(t, f.Config, drainingPlan()), prefix+"no endpoint of its Service "+f.namespace+"/policy is ready")

	ready := false
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, ObjectMeta: metav1.ObjectMeta{
		Namespace: f.namespace, Name: "policy-1", Labels: map[string]string{discoveryv1.LabelServiceName: "policy"}}}
	slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"},
		Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}
	f.Apply(t, slice)
	expect(t, f.findings(t, f.Config, drainingPlan()), prefix+"no endpoint of its Service")
	for _, resource := range []string{"configmaps", "pods/log"} {
		calls(t, f, configuration, resource)
		expect(t, f.findings(t, f.Config, drainingPlan()))
	}
	for _, resource := range []string{"*", "*/eviction", "*/*"} {
		calls(t, f, configuration, resource)
		expect(t, f.findings(t, f.Config, drainingPlan()), prefix+"no endpoint of its Service")
	}
	testkit.Update(t, f.Client, slice, func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = nil })
	expect(t, f.findings(t, f.Config, drainingPlan()))
	f.remove(t, configuration, service, slice)
}

// calls changes the resource for which the API server calls the webhooks.
func calls(t *testing.T, f *fixture, c *admissionv1.ValidatingWebhookConfiguration, resource string) {
	t.Helper()
	testkit.Update(t, f.Client, c, func(c *admissionv1.ValidatingWebhookConfiguration) {
		for i := range c.Webhooks {
			c.Webhooks[i].Rules[0].Resources = []string{resource}
		}
	})
}

func testCapacity(t *testing.T, f *fixture) {
	daemon := f.pod(t, "daemon", "first", "500m", func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "x", UID: "1",
			Controller: new(true)}}
	})
	neighbor := f.pod(t, "neighbor", "second", "1500m", nil)
	expect(t, f.findings(t, f.Config, drainingPlan()),
		"NodeCapacity node/first the other nodes cannot run its pods: they request more CPU than is free",
		"NodeCapacity node/second the other nodes cannot run its pods: they request more CPU than is free")
	neighbor.Status.Phase = corev1.PodSucceeded // no longer occupies resources
	f.status(t, neighbor)
	expect(t, f.findings(t, f.Config, drainingPlan()))
	f.remove(t, daemon, neighbor)
}

// testRights checks with the rights of a user who may list nodes only.
func testRights(t *testing.T, f *fixture) {
	const user = "viewer"
	rule := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list"}}
	f.Apply(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: []rbacv1.PolicyRule{rule}})
	f.Apply(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}})
	f.AwaitRights(t, user, "", rule)
	config := rest.CopyConfig(f.Config)
	config.Impersonate.UserName = user
	got := f.findings(t, config, drainingPlan())
	var checks []string
	for _, one := range got {
		if !one.Unchecked || !strings.Contains(one.Cause, "forbidden") || !strings.HasPrefix(one.Remedy, "get the right") {
			t.Errorf("got %+v, want a check that was not allowed", one)
		}
		if !slices.Contains(checks, one.Check) {
			checks = append(checks, one.Check)
		}
	}
	want := []string{upgradecheck.CheckDisruptionBudgets, upgradecheck.CheckAdmissionWebhooks,
		upgradecheck.CheckRemovedAPIs, upgradecheck.CheckNodeCapacity}
	if !slices.Equal(checks, want) {
		t.Errorf("the checks that were not allowed are %v, want %v", checks, want)
	}
}

// removal is an API that some Kubernetes versions serve and a later version does not.
type removal struct{ path, groupVersion, resource, removed, before, manifest string }

// removals returns an API for old API servers and an API for new ones.
func removals() []removal {
	return []removal{
		{"flowschemas", "flowcontrol.apiserver.k8s.io/v1beta3", "flowschemas.v1beta3.flowcontrol.apiserver.k8s.io", "1.32",
			"v1.31.9", `"kind":"FlowSchema","spec":{"priorityLevelConfiguration":{"name":"exempt"},"matchingPrecedence":9000}`},
		{"servicecidrs", "networking.k8s.io/v1beta1", "servicecidrs.v1beta1.networking.k8s.io", "1.37",
			"v1.36.9", `"kind":"ServiceCIDR","spec":{"cidrs":["10.99.0.0/24"]}`},
	}
}

// A client that calls an API that the target version removes makes the check fail. "make test-versions" runs this test
// with an API server of the oldest version.
func TestAClientOfARemovedAPIIsFound(t *testing.T) {
	f := &fixture{Env: testkit.StartMemberServing(t, "networking.k8s.io/v1beta1")}
	client, err := rest.HTTPClientFor(f.Config)
	if err != nil {
		t.Fatal(err)
	}
	send := func(method, path, body string) int {
		url := strings.TrimSuffix(f.Config.Host, "/") + path
		request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/apply-patch+yaml")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	plan := &v1.Plan{}
	plan.Spec.Version = target
	expect(t, f.findings(t, f.Config, plan))
	served := 0
	for _, api := range removals() {
		path := "/apis/" + api.groupVersion + "/" + api.path
		if send(http.MethodGet, path, "") == http.StatusNotFound {
			continue
		}
		served++
		t.Logf("the API server serves %s", api.groupVersion)
		plan.Spec.Version = target
		requested := "RemovedAPIs " + api.resource + " a client has requested this API since the API server started, and " +
			"Kubernetes " + api.removed + " does not serve it"
		expect(t, f.findings(t, f.Config, plan), requested)
		manifest := fmt.Sprintf(`{"apiVersion":%q,"metadata":{"name":"mine"},%s}`, api.groupVersion, api.manifest)
		if code := send(http.MethodPatch, path+"/mine?fieldManager=flux", manifest); code != http.StatusCreated {
			t.Fatalf("apply %s: status %d", manifest, code)
		}
		applied := "RemovedAPIs " + api.path + "/mine flux applied it as " + api.groupVersion
		expect(t, f.findings(t, f.Config, plan), requested, applied)
		plan.Spec.Version = api.before
		expect(t, f.findings(t, f.Config, plan))
	}
	if served != 1 {
		t.Errorf("the API server serves %d of the APIs, want 1", served)
	}
}

func TestAnUnreachableClusterIsAnError(t *testing.T) {
	config := &rest.Config{Host: "https://127.0.0.1:1", Timeout: time.Second}
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	goal, _ := upgradecheck.TargetOf(drainingPlan(), target)
	if facts, err := upgradecheck.Gather(t.Context(), upgradecheck.Source{Client: client}, &goal); err == nil {
		t.Errorf("got %+v, want an error", facts)
	}
}
