// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/upgradecheck"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// kubectl runs kubectl as the user of a config.
func kubectl(t *testing.T, config *rest.Config, stdin []byte, args ...string) (string, error) {
	t.Helper()
	programs, err := lab.Binaries(t.Context(), io.Discard, lab.Etcd, lab.APIServer, lab.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["member"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	kubeconfig.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData,
		ClientKeyData: config.KeyData}
	kubeconfig.Contexts["member"] = &clientcmdapi.Context{Cluster: "member", AuthInfo: "admin"}
	kubeconfig.CurrentContext = "member"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), programs[lab.Kubectl], append([]string{"--kubeconfig", path}, args...)...)
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestManifestInAMember(t *testing.T) {
	env := testkit.Shared(t)
	in := manifestInput(t)
	manifest, err := new(registration.Manifests).Manifest(in)
	if err != nil {
		t.Fatal(err)
	}
	defer remove(t, env, manifest)
	t.Run("kubectl applies it, and applying it again changes nothing", func(t *testing.T) {
		for _, want := range []string{"created", "unchanged"} {
			out, err := kubectl(t, env.Config, manifest, "apply", "--validate=strict", "-f", "-")
			if err != nil {
				t.Fatalf("kubectl apply: %v: %s", err, out)
			}
			for line := range strings.Lines(out) {
				// kubectl cannot compare stringData, so it always reports the Secret as configured.
				if !strings.Contains(line, want) && !strings.HasPrefix(line, "secret/") {
					t.Errorf("got %[2]s, want %[1]s", want, line)
				}
			}
		}
	})
	t.Run("the import command takes over an agent that another tool applied, or that has changed its Deployment, "+
		"without a warning", func(t *testing.T) {
		command, found := strings.CutPrefix(strings.Split(registration.Command("https://hub", v1.TrustSystem, ""), " | ")[1],
			"kubectl ")
		if command, _, _ = strings.Cut(command, " ;;"); !found {
			t.Fatalf("the command is %q, want a kubectl command", command)
		}
		if out, err := kubectl(t, env.Config, manifest, "apply", "--server-side", "--force-conflicts", "--field-manager",
			"kustomize-controller", "-f", "-"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		agent := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: protocol.AgentNamespace,
			Name: protocol.AgentName}}
		changed := client.RawPatch(types.JSONPatchType,
			[]byte(`[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"other"}]`))
		if err := env.Client.Patch(t.Context(), agent, changed, client.FieldOwner(protocol.AgentName)); err != nil {
			t.Fatal(err)
		}
		out, err := kubectl(t, env.Config, manifest, strings.Fields(command)...)
		if err != nil || strings.Contains(strings.ToLower(out), "warning") {
			t.Errorf("got %v, want no error and no warning: %s", err, out)
		}
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(agent), agent); err != nil ||
			agent.Spec.Template.Spec.Containers[0].Image == "other" {
			t.Errorf("the Deployment still belongs to another tool (%v), want the manifest's", err)
		}
	})
	t.Run("the token and the CA arrive in the Secret", func(t *testing.T) {
		secret := &corev1.Secret{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: protocol.AgentNamespace,
			Name: protocol.RegistrationSecret}, secret); err != nil {
			t.Fatal(err)
		}
		if string(secret.Data[protocol.KeyToken]) != in.Token ||
			string(secret.Data[protocol.KeyCABundle]) != in.Settings.CABundle {
			t.Error("the Secret's token or CA differs from the manifest, want them equal")
		}
	})
	t.Run("the agent can read all that is checked before an upgrade", func(t *testing.T) {
		config := rest.CopyConfig(env.Config)
		config.Impersonate = rest.ImpersonationConfig{
			UserName: "system:serviceaccount:" + protocol.AgentNamespace + ":" + protocol.AgentName,
			Groups:   []string{"system:serviceaccounts", "system:authenticated"}}
		config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
		c, err := rest.UnversionedRESTClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		target := &upgradecheck.Target{Version: "v1.99.0", Plan: "p", Nodes: labels.Everything(), Drain: &v1.Drain{}}
		testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
			facts, err := upgradecheck.Gather(ctx, upgradecheck.Source{Client: c, Direct: true}, target)
			if err == nil && len(facts.Unread) > 0 {
				err = fmt.Errorf("unread facts: %+v", facts.Unread)
			}
			return err
		})
	})
	t.Run("the agent's pod is admitted under the pod security level of its namespace", func(t *testing.T) {
		deployment := &appsv1.Deployment{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: protocol.AgentNamespace, Name: protocol.AgentName},
			deployment); err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: protocol.AgentNamespace, Name: "agent"},
			Spec: deployment.Spec.Template.Spec}
		if err := env.Client.Create(t.Context(), pod.DeepCopy(), client.DryRunAll); err != nil {
			t.Error(err)
		}
		pod.Spec.HostNetwork = true
		if err := env.Client.Create(t.Context(), pod, client.DryRunAll); err == nil {
			t.Error("a forbidden pod was admitted, so the level is not enforced and this test proves nothing")
		}
	})
	t.Run("CVE-2024-5042, CVE-2024-9779: the agent has the rights that it needs and no others",
		func(t *testing.T) { testRights(t, env, fullRights()) })
	t.Run("a ReadOnly agent has the rights to read and no others", func(t *testing.T) {
		in.Agent.Profile = v1.ProfileReadOnly
		manifest, err := new(registration.Manifests).Manifest(in)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := kubectl(t, env.Config, manifest, "apply", "--validate=strict", "-f", "-"); err != nil {
			t.Fatalf("kubectl apply --validate=strict: %v: %s", err, out)
		}
		// No controller aggregates the rules of the ClusterRole "view" here.
		view := &rbacv1.ClusterRole{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Name: "view"}, view); err != nil {
			t.Fatal(err)
		}
		view.Rules = []rbacv1.PolicyRule{
			{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get"}}, {APIGroups: []string{""},
				Resources: []string{"pods/log"}, Verbs: []string{"get"}},
		}
		if err := env.Client.Update(t.Context(), view); err != nil {
			t.Fatal(err)
		}
		testRights(t, env, readOnlyRights())
		testRightsOf(t, env, protocol.Viewer, viewerRights())
	})
}

// remove deletes a manifest's objects from the API server. No controller empties namespaces here, so remove finalizes
// the agent's namespace itself.
func remove(t *testing.T, env *testkit.Env, manifest []byte) {
	t.Helper()
	if out, err := kubectl(t, env.Config, manifest, "delete", "--wait=false", "-f", "-"); err != nil {
		t.Fatalf("kubectl delete: %v: %s", err, out)
	}
	namespace := &corev1.Namespace{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Name: protocol.AgentNamespace}, namespace); err != nil {
		t.Fatal(err)
	}
	namespace.Spec.Finalizers = nil
	if err := env.Client.SubResource("finalize").Update(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
}

// right is an action in a member, and whether the agent is allowed to do it.
type right struct {
	what    authorizationv1.ResourceAttributes
	allowed bool
}

const (
	own        = protocol.AgentNamespace
	rbac       = "rbac.authorization.k8s.io"
	authn      = "authentication.k8s.io"
	admission  = "admissionregistration.k8s.io"
	extensions = "apiextensions.k8s.io"
)

func at(verb, group, resource, subresource, namespace, name string) authorizationv1.ResourceAttributes {
	return authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: subresource,
		Namespace: namespace, Name: name}
}

func fullRights() map[string]right {
	return map[string]right{
		"impersonate a user":  {at("impersonate", "", "users", "", "", "github:alice"), true},
		"impersonate a group": {at("impersonate", "", "groups", "", "", "github:acme"), true},
		"impersonate a UID":   {at("impersonate", authn, "uids", "", "", "42"), true},
		"impersonate an extra of any key": {
			at("impersonate", authn, "userextras", "drover.dev/session", "", "x"), true,
		},
		"impersonate a ServiceAccount": {
			at("impersonate", "", "serviceaccounts", "", "kube-system", "default"), true,
		},
		"list nodes":                            {at("list", "", "nodes", "", "", ""), true},
		"watch pods":                            {at("watch", "", "pods", "", "", ""), true},
		"learn the UID of kube-system":          {at("get", "", "namespaces", "", "", "kube-system"), true},
		"write its own Secrets":                 {at("update", "", "secrets", "", own, protocol.IdentitySecret), true},
		"remove its own namespace":              {at("delete", "", "namespaces", "", own, own), true},
		"remove its own ClusterRole":            {at("delete", rbac, "clusterroles", "", "", protocol.AgentName), true},
		"read the Secrets of others":            {at("get", "", "secrets", "", "kube-system", "x"), true},
		"list all Secrets":                      {at("list", "", "secrets", "", "", ""), true},
		"remove another namespace":              {at("delete", "", "namespaces", "", "default", "default"), false},
		"exec into a pod":                       {at("create", "", "pods", "exec", "default", "x"), false},
		"exec into a pod of its own namespace":  {at("create", "", "pods", "exec", own, "x"), false},
		"cordon a node":                         {at("patch", "", "nodes", "", "", "x"), true},
		"remove a node":                         {at("delete", "", "nodes", "", "", "x"), false},
		"evict a pod":                           {at("create", "", "pods", "eviction", "default", "x"), true},
		"create the Job of a plan":              {at("create", "batch", "jobs", "", v1.PlansNamespace, ""), true},
		"read why the pod of a plan is waiting": {at("list", "", "events", "", v1.PlansNamespace, ""), true},
		"install the schema of plans": {
			at("create", extensions, "customresourcedefinitions", "", "", "plans."+v1.Group), true,
		},
		"install another schema": {
			at("create", extensions, "customresourcedefinitions", "", "", "x.example.org"), false,
		},
		"create the account of plans": {
			at("create", "", "serviceaccounts", "", v1.PlansNamespace, "drover-plan"), true,
		},
		"create another account":      {at("create", "", "serviceaccounts", "", v1.PlansNamespace, "x"), false},
		"replace another ClusterRole": {at("update", rbac, "clusterroles", "", "", "cluster-admin"), false},
		"bind a role":                 {at("bind", rbac, "clusterroles", "", "", "cluster-admin"), true},
		"escalate its own role":       {at("escalate", rbac, "clusterroles", "", "", protocol.AgentName), true},
		"create a token of a ServiceAccount": {
			at("create", "", "serviceaccounts", "token", "kube-system", "default"), false,
		},
		"create a ClusterRoleBinding": {at("create", rbac, "clusterrolebindings", "", "", ""), true},
		"deliver a quota":             {at("patch", "", "resourcequotas", "", "web", "x"), true},
		"deliver a guard":             {at("create", admission, "validatingadmissionpolicies", "", "", ""), true},
		"create a webhook": {
			at("create", admission, "validatingwebhookconfigurations", "", "", ""), false,
		},
		"create a namespace":              {at("create", "", "namespaces", "", "", ""), true},
		"pass the guard for sets":         {at("manage", v1.Group, "sets", "", "", ""), true},
		"pass the guard for namespaces":   {at("manage-namespaces", v1.Group, "projects", "", "", "web"), true},
		"pass the guard for pod security": {at("updatepsa", v1.Group, "projects", "", "", "web"), true},
		"create a workload":               {at("create", "apps", "deployments", "", "default", ""), false},
	}
}

func readOnlyRights() map[string]right {
	return map[string]right{
		"list nodes":                 {at("list", "", "nodes", "", "", ""), true},
		"read a workload":            {at("get", "apps", "deployments", "", "default", "x"), false},
		"read a log":                 {at("get", "", "pods", "log", "default", "x"), false},
		"impersonate the viewer":     {at("impersonate", "", "users", "", "", protocol.Viewer), true},
		"impersonate an extra":       {at("impersonate", authn, "userextras", "scopes", "", "x"), false},
		"cordon a node":              {at("patch", "", "nodes", "", "", "x"), false},
		"create the Job of a plan":   {at("create", "batch", "jobs", "", v1.PlansNamespace, ""), false},
		"write its own Secrets":      {at("update", "", "secrets", "", own, protocol.IdentitySecret), true},
		"remove its own ClusterRole": {at("delete", rbac, "clusterroles", "", "", protocol.AgentName), true},
		"remove its binding to view": {at("delete", rbac, "clusterrolebindings", "", "", protocol.AgentViewBinding), true},
		"impersonate a user":         {at("impersonate", "", "users", "", "", "github:alice"), false},
		"impersonate a group":        {at("impersonate", "", "groups", "", "", "github:acme"), false},
		"read the Secrets of others": {at("get", "", "secrets", "", "kube-system", "x"), false},
		"exec into a pod":            {at("create", "", "pods", "exec", "default", "x"), false},
		"exec into a pod by GET":     {at("get", "", "pods", "exec", "default", "x"), false},
		"reach a service":            {at("get", "", "services", "proxy", "default", "x"), false},
		"write a ConfigMap":          {at("update", "", "configmaps", "", "default", "x"), false},
		"create a binding":           {at("create", rbac, "clusterrolebindings", "", "", ""), false},
		"bind a role":                {at("bind", rbac, "clusterroles", "", "", "cluster-admin"), false},
		"escalate its own role":      {at("escalate", rbac, "clusterroles", "", "", protocol.AgentName), false},
		"create a namespace":         {at("create", "", "namespaces", "", "", ""), false},
		"pass the guard for sets":    {at("manage", v1.Group, "sets", "", "", ""), false},
	}
}

// viewerRights returns the rights of everyone who reaches a ReadOnly member. They do not include the agent's own
// Secrets (CVE-2021-36782), which contain its private key and the delivered data.
func viewerRights() map[string]right {
	return map[string]right{
		"the viewer reads a workload":                {at("get", "apps", "deployments", "", "default", "x"), true},
		"the viewer reads a log":                     {at("get", "", "pods", "log", "default", "x"), true},
		"the viewer reads the agent's key":           {at("get", "", "secrets", "", own, protocol.IdentitySecret), false},
		"the viewer reads the agent's token":         {at("get", "", "secrets", "", own, protocol.RegistrationSecret), false},
		"the viewer lists Secrets":                   {at("list", "", "secrets", "", "", ""), false},
		"the viewer writes a Secret of the agent":    {at("update", "", "secrets", "", own, protocol.IdentitySecret), false},
		"the viewer removes the agent's namespace":   {at("delete", "", "namespaces", "", own, own), false},
		"the viewer changes the agent's ClusterRole": {at("update", rbac, "clusterroles", "", "", protocol.AgentName), false},
		"the viewer acts as another user":            {at("impersonate", "", "users", "", "", "github:alice"), false},
	}
}

// testRights applies the manifest and asks the API server what the agent's ServiceAccount is allowed to do.
func testRights(t *testing.T, env *testkit.Env, rights map[string]right) {
	testRightsOf(t, env, "system:serviceaccount:"+own+":"+protocol.AgentName, rights, "system:serviceaccounts",
		"system:serviceaccounts:"+own)
}

// testRightsOf asks what a user is allowed to do. The API server needs a moment to notice a change.
func testRightsOf(t *testing.T, env *testkit.Env, user string, rights map[string]right, groups ...string) {
	for name, tc := range rights {
		t.Run(name, func(t *testing.T) {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: user, Groups: append([]string{"system:authenticated"}, groups...), ResourceAttributes: &tc.what,
			}}
			testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error {
				again := review.DeepCopy()
				if err := env.Client.Create(ctx, again); err != nil {
					return err
				}
				if again.Status.Allowed != tc.allowed {
					return fmt.Errorf("allowed: %t, want %t (%s)", again.Status.Allowed, tc.allowed, again.Status.Reason)
				}
				return nil
			})
		})
	}
}
