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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// kubectl runs kubectl as the administrator of a config.
func kubectl(t *testing.T, config *rest.Config, stdin []byte, args ...string) (string, error) {
	t.Helper()
	programs, err := lab.Binaries(t.Context(), io.Discard, lab.Etcd, lab.APIServer, lab.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["member"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	kubeconfig.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
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
	t.Run("kubectl applies it, and again without a change", func(t *testing.T) {
		for _, want := range []string{"created", "unchanged"} {
			out, err := kubectl(t, env.Config, manifest, "apply", "--validate=strict", "-f", "-")
			if err != nil {
				t.Fatalf("kubectl apply: %v: %s", err, out)
			}
			for line := range strings.Lines(out) {
				// A Secret's stringData is written, so kubectl always sees it as something to configure.
				if !strings.Contains(line, want) && !strings.HasPrefix(line, "secret/") {
					t.Errorf("want %s: %s", want, line)
				}
			}
		}
	})
	t.Run("the import command takes over an agent that another tool applied, or that has changed its Deployment, without a warning", func(t *testing.T) {
		command, found := strings.CutPrefix(strings.Split(registration.Command("https://hub", v1.TrustSystem, ""), " | ")[1], "kubectl ")
		if command, _, _ = strings.Cut(command, " ;;"); !found {
			t.Fatalf("the command is %q, want one of kubectl", command)
		}
		if out, err := kubectl(t, env.Config, manifest, "apply", "--server-side", "--force-conflicts", "--field-manager", "kustomize-controller", "-f", "-"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		agent := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: protocol.AgentNamespace, Name: protocol.AgentName}}
		changed := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"other"}]`))
		if err := env.Client.Patch(t.Context(), agent, changed, client.FieldOwner(protocol.AgentName)); err != nil {
			t.Fatal(err)
		}
		out, err := kubectl(t, env.Config, manifest, strings.Fields(command)...)
		if err != nil || strings.Contains(strings.ToLower(out), "warning") {
			t.Errorf("got %v, want no error and no warning: %s", err, out)
		}
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(agent), agent); err != nil || agent.Spec.Template.Spec.Containers[0].Image == "other" {
			t.Errorf("the Deployment is that of another tool (%v), want the manifest's", err)
		}
	})
	t.Run("the token and the CA arrive in the Secret", func(t *testing.T) {
		secret := &corev1.Secret{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: protocol.AgentNamespace, Name: protocol.RegistrationSecret}, secret); err != nil {
			t.Fatal(err)
		}
		if string(secret.Data[protocol.KeyToken]) != in.Token || string(secret.Data[protocol.KeyCABundle]) != in.Settings.CABundle {
			t.Error("they are not what they were")
		}
	})
	t.Run("the agent's pod is admitted under the pod security level of its namespace", func(t *testing.T) {
		deployment := &appsv1.Deployment{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: protocol.AgentNamespace, Name: protocol.AgentName}, deployment); err != nil {
			t.Fatal(err)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: protocol.AgentNamespace, Name: "agent"}, Spec: deployment.Spec.Template.Spec}
		if err := env.Client.Create(t.Context(), pod.DeepCopy(), client.DryRunAll); err != nil {
			t.Error(err)
		}
		pod.Spec.HostNetwork = true
		if err := env.Client.Create(t.Context(), pod, client.DryRunAll); err == nil {
			t.Error("the level is not enforced: this proves nothing")
		}
	})
	t.Run("CVE-2024-5042, CVE-2024-9779: the agent may do what it needs and nothing else", func(t *testing.T) { testRights(t, env, fullRights()) })
	t.Run("one that only reads may see what it is to see and nothing else", func(t *testing.T) {
		in.Agent.Profile = v1.ProfileReadOnly
		manifest, err := new(registration.Manifests).Manifest(in)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := kubectl(t, env.Config, manifest, "apply", "--validate=strict", "-f", "-"); err != nil {
			t.Fatalf("kubectl apply --validate=strict: %v: %s", err, out)
		}
		// Here no controller gathers the rules of the ClusterRole "view".
		view := &rbacv1.ClusterRole{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Name: "view"}, view); err != nil {
			t.Fatal(err)
		}
		view.Rules = []rbacv1.PolicyRule{
			{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get"}}, {APIGroups: []string{""}, Resources: []string{"pods/log"}, Verbs: []string{"get"}},
		}
		if err := env.Client.Update(t.Context(), view); err != nil {
			t.Fatal(err)
		}
		testRights(t, env, readOnlyRights())
		testRightsOf(t, env, protocol.Viewer, viewerRights())
	})
}

// remove takes a manifest out of the API server, as if it had not been applied. No controller empties namespaces here,
// so it finalizes that of the agent itself.
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

// right is something to do in a member, and whether an agent may.
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
	return authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource, Subresource: subresource, Namespace: namespace, Name: name}
}

func fullRights() map[string]right {
	return map[string]right{
		"impersonate a user":                    {at("impersonate", "", "users", "", "", "github:alice"), true},
		"impersonate a group":                   {at("impersonate", "", "groups", "", "", "github:acme"), true},
		"impersonate a UID":                     {at("impersonate", authn, "uids", "", "", "42"), true},
		"impersonate an extra of any key":       {at("impersonate", authn, "userextras", "drover.dev/session", "", "x"), true},
		"impersonate a ServiceAccount":          {at("impersonate", "", "serviceaccounts", "", "kube-system", "default"), true},
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
		"make the Job of a plan":                {at("create", "batch", "jobs", "", v1.PlansNamespace, ""), true},
		"read why the pod of a plan waits":      {at("list", "", "events", "", v1.PlansNamespace, ""), true},
		"bring the schema of plans":             {at("create", extensions, "customresourcedefinitions", "", "", "plans."+v1.Group), true},
		"bring another schema":                  {at("create", extensions, "customresourcedefinitions", "", "", "x.example.org"), false},
		"make the account of plans":             {at("create", "", "serviceaccounts", "", v1.PlansNamespace, "drover-plan"), true},
		"make another account":                  {at("create", "", "serviceaccounts", "", v1.PlansNamespace, "x"), false},
		"replace another ClusterRole":           {at("update", rbac, "clusterroles", "", "", "cluster-admin"), false},
		"bind a role":                           {at("bind", rbac, "clusterroles", "", "", "cluster-admin"), true},
		"give itself more":                      {at("escalate", rbac, "clusterroles", "", "", protocol.AgentName), true},
		"make a token of a ServiceAccount":      {at("create", "", "serviceaccounts", "token", "kube-system", "default"), false},
		"make a ClusterRoleBinding of its name": {at("create", rbac, "clusterrolebindings", "", "", ""), true},
		"deliver a quota":                       {at("patch", "", "resourcequotas", "", "web", "x"), true},
		"deliver a guard":                       {at("create", admission, "validatingadmissionpolicies", "", "", ""), true},
		"make a webhook":                        {at("create", admission, "validatingwebhookconfigurations", "", "", ""), false},
		"make a namespace":                      {at("create", "", "namespaces", "", "", ""), true},
		"pass the guard of sets":                {at("manage", v1.Group, "sets", "", "", ""), true},
		"pass the guard of namespaces":          {at("manage-namespaces", v1.Group, "projects", "", "", "web"), true},
		"pass the guard of pod security":        {at("updatepsa", v1.Group, "projects", "", "", "web"), true},
		"make a workload":                       {at("create", "apps", "deployments", "", "default", ""), false},
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
		"make the Job of a plan":     {at("create", "batch", "jobs", "", v1.PlansNamespace, ""), false},
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
		"make a binding":             {at("create", rbac, "clusterrolebindings", "", "", ""), false},
		"bind a role":                {at("bind", rbac, "clusterroles", "", "", "cluster-admin"), false},
		"give itself more":           {at("escalate", rbac, "clusterroles", "", "", protocol.AgentName), false},
		"make a namespace":           {at("create", "", "namespaces", "", "", ""), false},
		"pass the guard of sets":     {at("manage", v1.Group, "sets", "", "", ""), false},
	}
}

// viewerRights are those of everybody who reaches a member that can only be read. The agent's own Secrets are not among
// them (CVE-2021-36782): they hold its private key, and what was delivered.
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

// testRights asks the API server itself, with the manifest applied, what the agent's ServiceAccount may do.
func testRights(t *testing.T, env *testkit.Env, rights map[string]right) {
	testRightsOf(t, env, "system:serviceaccount:"+own+":"+protocol.AgentName, rights, "system:serviceaccounts", "system:serviceaccounts:"+own)
}

// testRightsOf asks what a user may do. The API server learns of a change in a moment.
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
