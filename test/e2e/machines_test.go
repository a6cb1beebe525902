// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/portal/catalog"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// machineAudience is the audience of the other cluster's tokens for the hub.
const machineAudience = "drover-of-cluster-b"

// TestAMachineWorksInAMemberByItsOwnToken uses a ServiceAccount of a real cluster, whose issuer has the same name as
// the hub's own issuer. With the token that its cluster issued, the ServiceAccount reaches a member under the name that
// the AuthProvider's rules define, and only as long as the provider allows it.
func TestAMachineWorksInAMemberByItsOwnToken(t *testing.T) {
	t.Parallel()
	s := startWith(t, (*system).startSignIn)
	cluster, _ := s.imported(t, "member", s.member, protocol.AgentNamespace)
	s.await(t, cluster, time.Minute, framework.Ready)
	other, _ := s.ready(t, "other") // the same member by another name
	narrow := s.hub.URL() + "/k8s/clusters/" + cluster.String()
	provider := s.provideAccounts(t, machineAudience, narrow)
	machine := provider + ":deployer@default"
	for _, plane := range []*framework.Plane{s.member, s.hub.Plane} {
		create(t, plane, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "deployer"}})
	}
	create(t, s.hub.Plane, &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Spec: v1.RoleTemplateSpec{Context: v1.ContextCluster, External: "view"}})
	for _, to := range []types.NamespacedName{cluster, other} {
		create(t, s.hub.Plane, &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: to.Namespace, Name: to.Name}, Spec: v1.ClusterRoleTemplateBindingSpec{
			ClusterTarget: v1.ClusterTarget{ClusterName: to.Name}, RoleTemplateName: "reader", Subject: v1.Subject{Kind: "User", Name: machine}}})
	}
	wide, one := accountToken(t, s.member, machineAudience), accountToken(t, s.member, narrow)
	reads := func(to types.NamespacedName, token string) error {
		_, err := s.kubectl(t, to, token, "get", "configmaps")
		return err
	}
	t.Run("it has the rights of its bindings, under its name", func(t *testing.T) {
		for _, to := range []types.NamespacedName{cluster, other} {
			testkit.Eventually(t, 2*time.Minute, func(context.Context) error { return reads(to, wide) })
		}
		out, err := s.kubectl(t, cluster, wide, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
		if err != nil || out != machine {
			t.Errorf("the member knows it as %q (%v), want %s", out, err, machine)
		}
		if _, err := s.kubectl(t, cluster, wide, "create", "namespace", "x"); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("it may do more than the binding says: %v", err)
		}
		if code, body := s.whoAmI(t, wide); code != http.StatusOK || !strings.Contains(body, machine) {
			t.Errorf("the hub knows it as %d %s", code, body)
		}
	})
	t.Run("a token that is made for one member is worthless elsewhere", func(t *testing.T) {
		if err := reads(cluster, one); err != nil {
			t.Errorf("in its member: %v", err)
		}
		if err := reads(other, one); err == nil || !strings.Contains(err.Error(), "the token is made for") {
			t.Errorf("in another one: %v", err)
		}
		if code, body := s.whoAmI(t, one); code != http.StatusForbidden {
			t.Errorf("at the hub: %d %s", code, body)
		}
	})
	t.Run("tokens of the hub's own ServiceAccounts stay those of the hub", func(t *testing.T) {
		for _, audience := range []string{"", s.hub.URL()} {
			if code, body := s.whoAmI(t, accountToken(t, s.hub.Plane, audience)); code != http.StatusOK || !strings.Contains(body, `"hub:system:serviceaccount:default:deployer"`) {
				t.Errorf("one for %q: %d %s", audience, code, body)
			}
		}
	})
	t.Run("the provider disabled, it is refused with the token that it has", func(t *testing.T) {
		if _, err := s.hub.Kubectl(t.Context(), nil, "patch", "authproviders.cluster.drover.dev", provider, "--type=merge", "-p", `{"spec":{"disabled":true}}`); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, time.Minute, func(context.Context) error {
			if err := reads(cluster, wide); err == nil || !strings.Contains(err.Error(), "disabled") {
				return fmt.Errorf("it is answered with %w", err)
			}
			return nil
		})
	})
}

// provideAccounts creates an AuthProvider for the ServiceAccounts of the member, and returns its name.
func (s *system) provideAccounts(t *testing.T, audiences ...string) string {
	t.Helper()
	config := s.member.RESTConfig()
	if err := rest.LoadTLSFiles(config); err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	var document struct{ Issuer string }
	raw, err := clients.RESTClient().Get().AbsPath("/.well-known/openid-configuration").DoRaw(t.Context())
	if err != nil || json.Unmarshal(raw, &document) != nil || document.Issuer == "" {
		t.Fatal(string(raw), err)
	}
	create(t, s.member, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "issuer-discovery"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:service-account-issuer-discovery"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:unauthenticated"}},
	})
	// The API server's own discovery document contains an address that cannot be reached from outside the cluster. So
	// another server publishes the document, as operators do.
	discovery := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": document.Issuer, "jwks_uri": s.member.URL() + "/openid/v1/jwks"})
	}))
	t.Cleanup(discovery.Close)
	authorities := string(config.CAData) + "\n" + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: discovery.Certificate().Raw}))
	create(t, s.hub.Plane, &v1.AuthProvider{ObjectMeta: metav1.ObjectMeta{Name: "cluster-b"}, Spec: v1.AuthProviderSpec{JWT: &v1.JWTProvider{
		Issuer: v1.JWTIssuer{URL: document.Issuer, DiscoveryURL: discovery.URL + "/document", CertificateAuthority: authorities, Audiences: audiences},
		ClaimMappings: v1.JWTClaimMappings{
			Username: v1.JWTClaimOrExpression{Expression: "claims['kubernetes.io'].serviceaccount.name + '@' + claims['kubernetes.io'].namespace"},
			UID:      &v1.JWTClaimOrExpression{Expression: "claims['kubernetes.io'].serviceaccount.uid"},
		},
	}}})
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error { // until the member knows the binding, by which anyone reads its keys, and the hub has asked
		out, err := s.hub.Kubectl(ctx, nil, "get", "authproviders.cluster.drover.dev", "cluster-b", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.conditions[?(@.type=="Ready")].message}`)
		if err == nil && !strings.HasPrefix(out, "True ") {
			err = errors.New("the provider is " + out)
		}
		return err
	})
	return "cluster-b"
}

// accountToken returns a token of the ServiceAccount deployer. Without an audience, the token is for the API server
// itself.
func accountToken(t *testing.T, plane *framework.Plane, audience string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if audience != "" {
		request.Spec.Audiences = []string{audience}
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "deployer"}}
	if err := plane.Client.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

// whoAmI asks the hub for the user of a token.
func (s *system) whoAmI(t *testing.T, token string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.hub.URL()+catalog.PathWhoAmI, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	bundle, err := s.hub.Bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(raw)
}
