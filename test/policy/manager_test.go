// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/test/testkit"
)

// managerUser is the account of the manager in config/manager.
func managerUser(t *testing.T) string {
	t.Helper()
	for _, o := range manifests(t, "config/manager") {
		if account, ok, _ := unstructured.NestedString(o.Object, "spec", "template", "spec", "serviceAccountName"); ok {
			return "system:serviceaccount:" + o.GetNamespace() + ":" + account
		}
	}
	t.Fatal("config/manager has no Deployment with an account")
	return ""
}

// manager acts as the manager, with the rights of config/rbac.
func (h *fixture) manager(t *testing.T) client.Client { return h.as(t, managerUser(t)) }

// deployManager creates the objects that the manager's account has on a hub.
func (h *fixture) deployManager(t *testing.T) {
	t.Helper()
	h.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "drover-system"}})
	for _, o := range manifests(t, "config/rbac") {
		h.Apply(t, o)
	}
	h.AwaitRights(t, managerUser(t), h.workspace, may("clusters", "patch"), may("clusters/status", "update"), may("secrets", "create"))
}

// ownedCluster is a Cluster that belongs to an object of kind Cluster.
func ownedCluster(t *testing.T, namespace, name, apiVersion, owner string) client.Object {
	t.Helper()
	c := cluster(t, namespace, name, "")
	c.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: apiVersion, Kind: "Cluster", Name: owner, UID: "u"}})
	return c
}

// testManager tests for CVE-2024-9779: the manager can create and change only its own objects. A compromised manager
// cannot create tokens or grant rights.
func testManager(t *testing.T, h *fixture) {
	manager := h.manager(t)
	t.Run("it sees the policies and cannot change them", func(t *testing.T) {
		for _, list := range []client.ObjectList{&admissionv1.ValidatingAdmissionPolicyList{}, &admissionv1.ValidatingAdmissionPolicyBindingList{}} {
			wantTaken(t, manager.List(t.Context(), list))
		}
		name := metav1.ObjectMeta{Name: "drover-manager-secrets"}
		for _, o := range []client.Object{&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: name}, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: name}} {
			for verb, err := range map[string]error{
				"create": manager.Create(t.Context(), o.DeepCopyObject().(client.Object), client.DryRunAll),
				"patch":  manager.Patch(t.Context(), o.DeepCopyObject().(client.Object), merge(`{"metadata":{"labels":{"a":"b"}}}`), client.DryRunAll),
				"delete": manager.Delete(t.Context(), o, client.DryRunAll),
			} {
				if !apierrors.IsForbidden(err) {
					t.Errorf("%s %T: %v, want forbidden", verb, o, err)
				}
			}
		}
	})
	secret := func(namespace, name, rest string) client.Object {
		return object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: %s%s}", namespace, name, rest))
	}
	revision := func(baseline string) string {
		return fmt.Sprintf(", labels: {cluster.drover.dev/baseline: %s, cluster.drover.dev/secret: baseline}}, type: Opaque}", baseline)
	}
	labels := func(cluster, kind string) string {
		return fmt.Sprintf(", labels: {cluster.drover.dev/cluster: %s, cluster.drover.dev/secret: %s}", cluster, kind)
	}
	h.Apply(t, object(t, fmt.Sprintf("{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {namespace: %s, name: 'drover:crtb:b'}}", h.workspace)))
	for name, o := range map[string]client.Object{
		"a join token":        secret(h.workspace, "prod-registration", labels("prod", "registration")+"}, type: Opaque}"),
		"an agent's identity": secret(h.workspace, "prod-agent", labels("prod", "agent")+"}}"),
		"a host's join token": secret(h.workspace, "m1-host-join", ", labels: {cluster.drover.dev/host: m1, cluster.drover.dev/secret: host-join}}, type: Opaque}"),
		"a host's identity":   secret(h.workspace, "m1-host-identity", ", labels: {cluster.drover.dev/host: m1, cluster.drover.dev/secret: host-identity}}}"),
		"the keys of sign-in": secret("drover-system", "drover-sign-in", ", labels: {cluster.drover.dev/secret: sign-in}}, type: Opaque}"),
		"a session":           secret("drover-system", "drover-session-0123456789abcdef0123456789abcdef", ", labels: {cluster.drover.dev/secret: session}}, type: Opaque}"),
		"a token for scripts": secret("drover-system", "drover-token-0123456789abcdef0123456789abcdef01234567", ", labels: {cluster.drover.dev/secret: token}}, type: Opaque}"),
		"a revision":          secret(h.workspace, "cni-revision-5", revision("cni")),
		"the hub's CA":        secret("drover-system", "drover-ca", ", labels: {cluster.drover.dev/secret: authority}}, type: Opaque}"),
		"a role of a binding": object(t, fmt.Sprintf("{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {namespace: %s, name: 'drover:crtb:a'}, rules: [{apiGroups: [cluster.drover.dev], resources: [clusters], resourceNames: [a], verbs: [get, list, watch]}]}", h.workspace)),
		"a binding of a binding": object(t, fmt.Sprintf("{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {namespace: %s, name: 'drover:crtb:b'}, "+
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: 'drover:crtb:b'}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]}", h.workspace)),
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error { // the API server learns of the Role a moment after it is made
				return manager.Create(ctx, o)
			})
			before := o.DeepCopyObject().(client.Object)
			o.SetAnnotations(map[string]string{"a": "b"})
			wantTaken(t, manager.Patch(t.Context(), o, client.MergeFrom(before)))
		})
	}
	const account = ", annotations: {kubernetes.io/service-account.name: default}"
	const secrets, roles, bindings = "writes only Secrets of type Opaque", "grants only read access to Clusters", "binds only the Role"
	rule := func(name, rule string) client.Object {
		return object(t, fmt.Sprintf("{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {namespace: %s, name: %q}, rules: [%s]}", h.workspace, name, rule))
	}
	bind := func(name, kind, role string) client.Object {
		return object(t, fmt.Sprintf("{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {namespace: %s, name: %q}, "+
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %s, name: %q}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: eve}]}", h.workspace, name, kind, role))
	}
	h.Apply(t, object(t, "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: 'drover:crtb:b'}, rules: [{apiGroups: [cluster.drover.dev], resources: [clusters], verbs: [get]}]}"))
	h.Apply(t, rule("seen", "{apiGroups: [cluster.drover.dev], resources: [clusters], verbs: [get]}"))
	for name, tt := range map[string]struct {
		object client.Object
		want   string
	}{
		"a token of a ServiceAccount":              {secret(h.workspace, "x", account+"}, type: kubernetes.io/service-account-token}"), secrets},
		"a token by the name of a registration":    {secret(h.workspace, "x-registration", labels("x", "registration")+account+"}, type: kubernetes.io/service-account-token}"), secrets},
		"a token that lets nodes join":             {secret("kube-system", "bootstrap-token-abcdef", "}, type: bootstrap.kubernetes.io/token}"), secrets},
		"a Secret of another name":                 {secret(h.workspace, "x", labels("prod", "registration")+"}}"), "denied request"},
		"a host's join token of another name":      {secret(h.workspace, "m2-host-join", ", labels: {cluster.drover.dev/host: m1, cluster.drover.dev/secret: host-join}}}"), "denied request"},
		"instructions of a host":                   {hostInstructions(t, h.workspace, "m9"), "denied request"},
		"the tokens of a ClusterInstallation":      {secret(h.workspace, "web-provision", ", labels: {provision.cluster.drover.dev/installation: web, cluster.drover.dev/secret: provision}}, type: Opaque}"), "denied request"},
		"a kubeconfig for Cluster API":             {secret(h.workspace, "web-kubeconfig", ", labels: {cluster.x-k8s.io/cluster-name: web, cluster.drover.dev/secret: kubeconfig}}, type: Opaque}"), "denied request"},
		"a revision of another Baseline":           {secret(h.workspace, "cni-revision-5", revision("c")), secrets},
		"a seventh revision":                       {secret(h.workspace, "cni-revision-6", revision("cni")), secrets},
		"a Secret without labels":                  {secret(h.workspace, "y-registration", "}}"), secrets},
		"a Secret for a project":                   {secret(h.workspace, "for-web", ", labels: {cluster.drover.dev/project: web}}}"), secrets},
		"the CA in another namespace":              {secret(h.workspace, "drover-ca", ", labels: {cluster.drover.dev/secret: authority}}}"), secrets},
		"the keys of sign-in in another namespace": {secret(h.workspace, "drover-sign-in", ", labels: {cluster.drover.dev/secret: sign-in}}}"), secrets},
		"a session in another namespace":           {secret(h.workspace, "drover-session-0123456789abcdef0123456789abcdef", ", labels: {cluster.drover.dev/secret: session}}}"), secrets},
		"a user's token in another namespace":      {secret(h.workspace, "drover-token-0123456789abcdef0123456789abcdef01234567", ", labels: {cluster.drover.dev/secret: token}}}"), secrets},
		"a password as a token":                    {secret("drover-system", "drover-user-alice", ", labels: {cluster.drover.dev/secret: token}}}"), secrets},
		"a session as a token":                     {secret("drover-system", "drover-session-0123456789abcdef0123456789abcdef", ", labels: {cluster.drover.dev/secret: token}}}"), secrets},
		"a password of a user":                     {secret("drover-system", "drover-user-alice", ", labels: {cluster.drover.dev/secret: user}}}"), secrets},
		"a password as a session":                  {secret("drover-system", "drover-user-alice", ", labels: {cluster.drover.dev/secret: session}}}"), secrets},
		"another role":                             {rule("x", "{apiGroups: [''], resources: [secrets], verbs: [get]}"), "only the Roles and RoleBindings of its own bindings"},
		"a role that reads Secrets":                {rule("drover:crtb:b", "{apiGroups: [''], resources: [secrets], verbs: [get]}"), roles},
		"a role for all Clusters":                  {rule("drover:crtb:b", "{apiGroups: [cluster.drover.dev], resources: [clusters], verbs: [get]}"), roles},
		"a role that changes Clusters":             {rule("drover:crtb:b", "{apiGroups: [cluster.drover.dev], resources: [clusters], resourceNames: [a], verbs: [get, patch]}"), roles},
		"a binding of a ClusterRole":               {bind("drover:crtb:b", "ClusterRole", "drover-manager"), bindings},
		"a binding of a ClusterRole of its name":   {bind("drover:crtb:b", "ClusterRole", "drover:crtb:b"), bindings},
		"a binding of another Role":                {bind("drover:crtb:b", "Role", "seen"), bindings},
	} {
		t.Run(name, func(t *testing.T) { wantRefused(t, manager.Create(t.Context(), tt.object, client.DryRunAll), tt.want) })
	}
	t.Run("it renews and revokes sessions, and gives none away", func(t *testing.T) {
		session := secret("drover-system", "drover-session-00000000000000000000000000000002",
			", labels: {cluster.drover.dev/secret: session, cluster.drover.dev/user: alice}}, type: Opaque, stringData: {uid: a, begun: b, keys: k, ends: e, awaited: 'true'}}")
		wantTaken(t, manager.Create(t.Context(), session))
		for name, patch := range map[string]string{
			"another user": `{"metadata":{"labels":{"cluster.drover.dev/user":"bob"}}}`, "no user": `{"metadata":{"labels":{"cluster.drover.dev/user":null}}}`,
			"another User of the name": `{"data":{"uid":"Yg=="}}`, "no UID": `{"data":{"uid":null}}`, "a later login": `{"data":{"begun":"Yw=="}}`, "other keys": `{"data":{"keys":"Yw=="}}`, "a principal": `{"data":{"principal":"Yw=="}}`,
			"a provider": `{"data":{"provider":"Yw=="}}`, "another provider of the name": `{"data":{"providerUID":"Yw=="}}`, "no data": `{"data":null}`,
		} {
			t.Run(name, func(t *testing.T) {
				wantRefused(t, manager.Patch(t.Context(), session.DeepCopyObject().(client.Object), merge("%s", patch), client.DryRunAll), "cannot change the user, login or keys of a session")
			})
		}
		wantTaken(t, manager.Patch(t.Context(), session, merge(`{"data":{"awaited":null,"refresh":"e30=","ends":"Zg=="}}`)))
		wantRefused(t, manager.Patch(t.Context(), session.DeepCopyObject().(client.Object), merge(`{"data":{"awaited":"dHJ1ZQ=="}}`), client.DryRunAll), "make a revoked or redeemed session valid again")
		wantTaken(t, manager.Patch(t.Context(), session, merge(`{"data":{"direct":"Zg=="}}`)))
		wantTaken(t, manager.Patch(t.Context(), session.DeepCopyObject().(client.Object), merge(`{"data":{"direct":"Zw=="}}`), client.DryRunAll))
		wantRefused(t, manager.Patch(t.Context(), session.DeepCopyObject().(client.Object), merge(`{"data":{"direct":null}}`), client.DryRunAll), "make a revoked or redeemed session valid again")
		wantTaken(t, manager.Patch(t.Context(), session, merge(`{"data":{"revoked":"dHJ1ZQ=="}}`)))
		wantRefused(t, manager.Patch(t.Context(), session.DeepCopyObject().(client.Object), merge(`{"data":{"revoked":null}}`), client.DryRunAll), "make a revoked or redeemed session valid again")
	})
	t.Run("it deletes sessions and tokens and no other Secret", func(t *testing.T) {
		const session, token = "drover-session-00000000000000000000000000000000", "drover-token-0000000000000000000000000000000000000000"
		for name, kind := range map[string]string{
			session: "session", token: "token", "drover-user-bob": "session", "drover-user-carol": "token",
			"drover-session-00000000000000000000000000000001": "user", "drover-token-0000000000000000000000000000000000000001": "user", "drover-token-1": "token",
		} {
			o := secret("drover-system", name, ", labels: {cluster.drover.dev/secret: "+kind+"}}}")
			h.Apply(t, o)
			if err := manager.Delete(t.Context(), o); name == session || name == token {
				wantTaken(t, err)
			} else {
				wantRefused(t, err, "deletes only the Secrets of sessions and tokens")
			}
		}
	})
	t.Run("what is another's stays as it is", func(t *testing.T) {
		theirs := secret(h.workspace, "theirs-agent", "}}")
		h.Apply(t, theirs)
		wantRefused(t, manager.Patch(t.Context(), theirs, merge(`{"metadata":{"labels":{"cluster.drover.dev/cluster":"theirs","cluster.drover.dev/secret":"agent"}}}`)), secrets)
		role := rule("theirs", "{apiGroups: [''], resources: [pods], verbs: [get]}")
		h.Apply(t, role)
		wantRefused(t, manager.Delete(t.Context(), role), "only the Roles and RoleBindings of its own bindings")
		spec := cluster(t, h.workspace, "specified", "")
		h.Apply(t, spec)
		for _, patch := range []string{`{"spec":{"agent":{"image":"evil"}}}`, `{"spec":{"deletionPolicy":"Orphan"}}`, `{"spec":{"registration":{"tokenTTL":"8760h"}}}`} {
			wantRefused(t, manager.Patch(t.Context(), spec.DeepCopy(), merge("%s", patch)), "")
		}
	})
	t.Run("an overlay that gives it another namespace and name leaves it its limits", func(t *testing.T) {
		user := "system:serviceaccount:" + h.other + ":acme-drover-manager-blue"
		h.allow(t, user, "", may("secrets", "create"), may("clusters", "create"), rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles"}, Verbs: []string{"create", "escalate"}})
		renamed := h.as(t, user)
		for _, tt := range []struct {
			object client.Object
			want   string
		}{
			{secret(h.workspace, "x", account+"}, type: kubernetes.io/service-account-token}"), secrets},
			{secret("drover-system", "drover-ca", ", labels: {cluster.drover.dev/secret: authority}}}"), secrets},
			{rule("drover:crtb:b", "{apiGroups: [''], resources: [secrets], verbs: [get]}"), roles},
			{cluster(t, h.workspace, "made", ""), "cannot create a Cluster"},
			{ownedCluster(t, h.workspace, "made", "apps/v1", "made"), "cannot create a Cluster"},
			{ownedCluster(t, h.workspace, "made", "cluster.x-k8s.io/v1beta2", "made"), "cannot create a Cluster"},
		} {
			wantRefused(t, renamed.Create(t.Context(), tt.object, client.DryRunAll), tt.want)
		}
		wantTaken(t, renamed.Create(t.Context(), secret(h.other, "drover-ca", ", labels: {cluster.drover.dev/secret: authority}}, type: Opaque}"), client.DryRunAll))
	})
	t.Run("it has no other way to a token or to rights", func(t *testing.T) {
		for _, resource := range []string{"serviceaccounts/token", "pods", "pods/exec"} {
			base, sub, _ := strings.Cut(resource, "/")
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: managerUser(t),
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: h.workspace, Verb: "create", Resource: base, Subresource: sub}}}
			wantTaken(t, h.Client.Create(t.Context(), review))
			if review.Status.Allowed {
				t.Errorf("may create %s", resource)
			}
		}
	})
}
