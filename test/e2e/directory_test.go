// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goldap "github.com/go-ldap/ldap/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
	"github.com/drover-dev/drover/test/testkit/directory"
)

const carolOfDirectory = "uid=carol,ou=people," + directory.Suffix

// inDirectory is a setup with the user carol in the group ops.
const inDirectory = `
dn: ` + carolOfDirectory + `
objectClass: inetOrgPerson
uid: carol
cn: Carol
sn: Carol
userPassword: password of carol

dn: cn=ops,ou=groups,` + directory.Suffix + `
objectClass: groupOfNames
cn: ops
member: ` + carolOfDirectory + `
`

// TestOneUserOfADirectoryWorksAtHubProxyAndMember checks that a user of a real slapd signs in, and has rights only
// through a group. A single kubeconfig with a single token works with the hub's API server, with the hub's API server
// through the proxy, and in a member, including exec and port-forward.
func TestOneUserOfADirectoryWorksAtHubProxyAndMember(t *testing.T) {
	t.Parallel()
	server, err := directory.StartOpenLDAP(t.Context(), inDirectory)
	if errors.Is(err, directory.ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	h := &trustingHub{file: filepath.Join(t.TempDir(), "authentication.yaml")}
	h.system = startWith(t, func(s *system, t *testing.T) { h.install(t, s) })
	cluster, _ := h.imported(t, "member", h.member, protocol.AgentNamespace)
	h.await(t, cluster, time.Minute, framework.Ready)
	pod := startKubelet(t, h.member)
	h.provide(t, server)
	h.bindOps(t, cluster.Name)
	awaitKeys(t, h.system)
	h.trust(t)

	v := newVisitor(t, h.system, "carol", "password of carol")
	v.account = "corp"
	var token string
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error { // the page offers a provider once the cache has it, and a token has a group once a binding names it
		got, err := v.login(ctx)
		if err != nil {
			return err
		}
		token = idToken(got)
		if groups := groupsOf(token); len(groups) != 1 {
			return fmt.Errorf("the token has the groups %v, want one", groups)
		}
		return nil
	})
	kubectl := h.oneKubeconfig(t, cluster.Name, token)
	for _, way := range []string{"hub", "proxy", "member"} {
		t.Run("the user is the same at the "+way, func(t *testing.T) {
			testkit.Eventually(t, 2*time.Minute, func(context.Context) error { // the API server reads its file, and the member gets the binding
				out, err := kubectl(t, way, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username} {.status.userInfo.groups}")
				if err == nil && (!strings.HasPrefix(out, "corp:carol ") || !strings.Contains(out, `"corp:ops"`)) {
					err = fmt.Errorf("carol is known as %q", out)
				}
				return err
			})
		})
	}
	for _, way := range []string{"hub", "proxy"} {
		if out, err := kubectl(t, way, "get", "clusters.cluster.drover.dev", "-n", cluster.Namespace, "-o", "name"); err != nil || !strings.Contains(out, cluster.Name) {
			t.Errorf("at the %s carol reads %q (%v)", way, out, err)
		}
		if _, err := kubectl(t, way, "get", "secrets", "-A"); err == nil || !strings.Contains(err.Error(), `User "corp:carol" cannot list resource "secrets"`) {
			t.Errorf("at the %s carol may read Secrets: %v", way, err)
		}
	}
	t.Run("exec works in the member", func(t *testing.T) {
		testkit.Eventually(t, time.Minute, func(context.Context) error { // the member gets the binding
			out, err := kubectl(t, "member", "exec", pod.pod, "--", "sh", "-c", "echo out")
			if err == nil && out != "out\n" {
				err = fmt.Errorf("exec prints %q", out)
			}
			return err
		})
	})
	t.Run("port-forward works in the member", func(t *testing.T) {
		testPortForward(t, &streams{kubelet: pod, kubectl: h.programs.Kubectl, kubeconfig: h.kubeconfig(t, cluster, token)})
	})
	t.Run("what the user loses in the directory is lost at the next renewal", func(t *testing.T) { h.leave(t, server, v) })
}

// provide adds the directory as the provider corp.
func (h *trustingHub) provide(t *testing.T, server *directory.Server) {
	t.Helper()
	for _, o := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "drover-system", Name: "ldap", Labels: map[string]string{v1.LabelSecretKind: v1.SecretKindProvider}},
			Data: map[string][]byte{"password": []byte(server.BindPassword)}},
		&v1.AuthProvider{ObjectMeta: metav1.ObjectMeta{Name: "corp"}, Spec: v1.AuthProviderSpec{LDAP: &v1.LDAPProvider{
			Servers: []string{server.LDAPS}, CABundle: string(server.CA),
			Bind:        v1.LDAPBind{DN: server.BindDN, PasswordSecret: v1.ProviderSecret{Name: "ldap", Key: "password"}},
			UserSearch:  v1.LDAPUserSearch{Base: "ou=people," + directory.Suffix, Filter: "(&(objectClass=inetOrgPerson)(uid={name}))", IDAttribute: "entryUUID", NameAttribute: "uid"},
			GroupSearch: v1.LDAPGroupSearch{Source: "Search", Base: "ou=groups," + directory.Suffix, Filter: "(member={dn})"},
		}}},
	} {
		create(t, h.hub.Plane, o)
	}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		out, err := h.hub.Kubectl(ctx, nil, "get", "authproviders.cluster.drover.dev", "corp", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && out != "True" {
			err = fmt.Errorf("the provider is Ready=%s", out)
		}
		return err
	})
}

// bindOps grants the group its rights: in the member with a binding, and on the hub with the hub's own RBAC.
func (h *trustingHub) bindOps(t *testing.T, cluster string) {
	t.Helper()
	for _, o := range []client.Object{
		&v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "operator"}, Spec: v1.RoleTemplateSpec{Context: v1.ContextCluster, External: "admin"}},
		&v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "ops"}, Spec: v1.ClusterRoleTemplateBindingSpec{
			ClusterTarget: v1.ClusterTarget{ClusterName: cluster}, RoleTemplateName: "operator", Subject: v1.Subject{Kind: "Group", Name: "corp:ops"}}},
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "ops"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{v1.Group}, Resources: []string{"clusters"}, Verbs: []string{"get", "list"}}}},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "ops"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "ops"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "corp:ops"}}},
	} {
		create(t, h.hub.Plane, o)
	}
}

// oneKubeconfig writes a kubeconfig with one user, and the contexts hub, proxy and member. It returns a function that
// runs kubectl with it.
func (h *trustingHub) oneKubeconfig(t *testing.T, cluster, token string) func(t *testing.T, context string, args ...string) (string, error) {
	t.Helper()
	bundle, err := h.hub.Bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.AuthInfos["carol"] = &clientcmdapi.AuthInfo{Token: token}
	for name, at := range map[string]*clientcmdapi.Cluster{
		"hub":    {Server: h.hub.Plane.URL(), CertificateAuthorityData: h.hub.CA()},
		"proxy":  {Server: h.hub.URL() + "/k8s/local", CertificateAuthorityData: bundle},
		"member": {Server: h.hub.URL() + "/k8s/clusters/default/" + cluster, CertificateAuthorityData: bundle},
	} {
		config.Clusters[name], config.Contexts[name] = at, &clientcmdapi.Context{Cluster: name, AuthInfo: "carol"}
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T, context string, args ...string) (string, error) {
		t.Helper()
		return framework.Kubectl(within(t, 30*time.Second), h.programs, file, nil, append([]string{"--context", context}, args...)...)
	}
}

// leave removes the user from the group, and renews their token.
func (h *trustingHub) leave(t *testing.T, server *directory.Server, v *visitor) {
	t.Helper()
	got, err := v.login(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	admin, err := server.Admin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close() }()
	leave := goldap.NewModifyRequest("cn=ops,ou=groups,"+directory.Suffix, nil)
	leave.Replace("member", []string{"cn=admin," + directory.Suffix})
	if err := admin.Modify(leave); err != nil {
		t.Fatal(err)
	}
	if got, err = v.renew(t.Context(), got); err != nil {
		t.Fatal(err)
	}
	if groups := groupsOf(idToken(got)); len(groups) != 0 {
		t.Errorf("the token still has the groups %v", groups)
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error { // the proxy caches some former decisions for seconds
		if _, err := h.oneKubeconfig(t, "member", idToken(got))(t, "member", "get", "pods"); err == nil || !strings.Contains(err.Error(), `user "corp:carol" may not reach`) {
			return fmt.Errorf("the member answers with %w", err)
		}
		return nil
	})
}

// groupsOf returns the groups in a token.
func groupsOf(token string) []string {
	var claims struct{ Groups []string }
	if parts := strings.Split(token, "."); len(parts) == 3 {
		raw, _ := base64.RawURLEncoding.DecodeString(parts[1])
		_ = json.Unmarshal(raw, &claims) // anything but a token has no groups
	}
	return claims.Groups
}
