// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/signin"
	"github.com/drover-dev/drover/internal/signin/keys"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// trustingHub is a hub whose API server reads an authentication configuration from a file.
type trustingHub struct {
	*system
	file string
}

// TestTheHubsAPIServerTrustsTheIssuer uses docs/operations/hub-authentication.yaml, and checks that a token
// authenticates the same user at the hub's API server, at the proxy and in a member.
func TestTheHubsAPIServerTrustsTheIssuer(t *testing.T) {
	t.Parallel()
	h := &trustingHub{file: filepath.Join(t.TempDir(), "authentication.yaml")}
	h.system = startWith(t, func(s *system, t *testing.T) { h.install(t, s) })
	cluster, _ := h.imported(t, "member", h.member, protocol.AgentNamespace)
	h.await(t, cluster, time.Minute, framework.Ready)
	// Rights on the hub come from the hub's own RBAC, as for any other user of the hub.
	h.allow(t, "local:alice", rbacv1.PolicyRule{APIGroups: []string{v1.Group}, Resources: []string{"clusters", "clusters/proxy"}, Verbs: []string{"get"}})
	secret := makeUser(t, h.system, "alice")
	token := signIn(t, h.system, "alice", secret)

	t.Run("without the issuer in the file the hub refuses the token", func(t *testing.T) {
		if user, err := h.whoami(t, token); err == nil {
			t.Errorf("the hub knows the user as %v", user)
		}
	})
	t.Run("with it, it accepts the token, without a restart", func(t *testing.T) {
		h.trust(t)
		h.awaitAlice(t, token)
	})
	t.Run("the user is the same at the hub and in a member", func(t *testing.T) { h.sameUser(t, cluster, token) })
	t.Run("a binding of the hub counts", func(t *testing.T) {
		if out, err := h.asUser(t, token, "get", "clusters.cluster.drover.dev", cluster.Name, "-o", "name"); err != nil || !strings.Contains(out, cluster.Name) {
			t.Errorf("alice reads %q (%v)", out, err)
		}
		if _, err := h.asUser(t, token, "get", "secrets", "-A"); err == nil || !strings.Contains(err.Error(), `User "local:alice" cannot list resource "secrets"`) {
			t.Errorf("alice may read Secrets: %v", err)
		}
	})
	t.Run("tokens", h.tokens)
	t.Run("a key that was published before it signs refuses no login, and the issuer may be away when the API server starts", func(t *testing.T) {
		h.rotate(t, secret, token)
	})
	t.Run("a user who is disabled is refused at the proxy, and at the hub when the token ends", func(t *testing.T) {
		fresh := signIn(t, h.system, "alice", secret)
		if _, err := h.hub.Kubectl(t.Context(), nil, "patch", "users.cluster.drover.dev", "alice", "--type=merge", "-p", `{"spec":{"disabled":true}}`); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, time.Minute, func(context.Context) error {
			if _, err := h.kubectl(t, cluster, fresh, "auth", "whoami"); err == nil {
				return errors.New("the user is still served")
			}
			return nil
		})
		if _, err := h.whoami(t, fresh); err != nil {
			t.Errorf("docs/operations/sign-in.md says that the hub's API server takes the token until it ends: %v", err)
		}
	})
}

// install starts the hub. Its API server starts before there is an issuer, as in a first installation, with a file that
// names no issuer.
func (h *trustingHub) install(t *testing.T, s *system) {
	t.Helper()
	if err := os.WriteFile(h.file, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := s.programs
	p.APIServerArgs = append(slices.Clone(p.APIServerArgs), "--authentication-config="+h.file)
	plane, err := framework.StartPlane(within(t, 2*time.Minute), p, "hub", s.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Kill() })
	layout := framework.Layout{Replicas: 1, Configure: func(c *config.Config) { c.SignIn.Issuer = c.Server.URLs[0] }}
	if s.hub, err = framework.InstallReplicas(within(t, 2*time.Minute), plane, layout); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.hub.Manager.Kill() })
}

// trust writes the file from the documentation, with this hub's URL and CA.
func (h *trustingHub) trust(t *testing.T) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(h.programs.Root, "docs", "operations", "hub-authentication.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		APIVersion string           `json:"apiVersion"`
		Kind       string           `json:"kind"`
		JWT        []map[string]any `json:"jwt"`
	}
	if err := yaml.UnmarshalStrict(raw, &file); err != nil || len(file.JWT) != 1 {
		t.Fatalf("the file has %d issuers (%v)", len(file.JWT), err)
	}
	bundle, err := h.hub.Bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	issuer, ok := file.JWT[0]["issuer"].(map[string]any)
	if !ok {
		t.Fatal("the file has no issuer")
	}
	issuer["url"], issuer["certificateAuthority"] = h.hub.URL(), string(bundle)
	if raw, err = yaml.Marshal(file); err != nil {
		t.Fatal(err)
	}
	next := h.file + ".next" // renamed, so that the API server never reads half of it
	if err := errors.Join(os.WriteFile(next, raw, 0o600), os.Rename(next, h.file)); err != nil {
		t.Fatal(err)
	}
}

// asUser runs kubectl on the hub's API server with a token.
func (h *trustingHub) asUser(t *testing.T, token string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := framework.WriteKubeconfig(file, h.hub.Plane.URL(), h.hub.CA(), token); err != nil {
		t.Fatal(err)
	}
	return framework.Kubectl(within(t, 30*time.Second), h.programs, file, nil, args...)
}

func (h *trustingHub) whoami(t *testing.T, token string) (authenticationv1.UserInfo, error) {
	t.Helper()
	out, err := h.asUser(t, token, "auth", "whoami", "-o", "json")
	return reviewed(t, out, err)
}

func reviewed(t *testing.T, out string, err error) (authenticationv1.UserInfo, error) {
	t.Helper()
	var review authenticationv1.SelfSubjectReview
	if err == nil {
		err = json.Unmarshal([]byte(out), &review)
	}
	return review.Status.UserInfo, err
}

// awaitAlice waits until the API server accepts a token and identifies its user. The API server reads a changed file
// within a minute, and retries an unavailable issuer every 10 s.
func (h *trustingHub) awaitAlice(t *testing.T, token string) {
	t.Helper()
	testkit.Eventually(t, 2*time.Minute, func(context.Context) error {
		user, err := h.whoami(t, token)
		if err == nil && user.Username != "local:alice" {
			err = fmt.Errorf("the hub knows the user as %q", user.Username)
		}
		return err
	})
}

func (h *trustingHub) sameUser(t *testing.T, cluster types.NamespacedName, token string) {
	t.Helper()
	atHub, err := h.whoami(t, token)
	if err != nil {
		t.Fatal(err)
	}
	var inMember authenticationv1.UserInfo
	testkit.Eventually(t, time.Minute, func(context.Context) error { // its rights at the proxy are of a cache
		out, err := h.kubectl(t, cluster, token, "auth", "whoami", "-o", "json")
		inMember, err = reviewed(t, out, err)
		return err
	})
	if atHub.Username != "local:alice" || inMember.Username != atHub.Username {
		t.Errorf("the user is %q at the hub, %q in the member", atHub.Username, inMember.Username)
	}
	user := &v1.User{}
	if err := h.hub.Client.Get(t.Context(), types.NamespacedName{Name: "alice"}, user); err != nil {
		t.Fatal(err)
	}
	if atHub.UID != string(user.UID) || !slices.Equal(atHub.Groups, []string{"system:authenticated"}) {
		t.Errorf("at the hub the user has the UID %q and the groups %v; the User has %q", atHub.UID, atHub.Groups, user.UID)
	}
}

// tokens tries tokens that are signed with the issuer's own key, so that each token is rejected because of one rule of
// the file only.
func (h *trustingHub) tokens(t *testing.T) {
	set := h.keys(t)
	now := time.Now()
	claims := func(change map[string]any) map[string]any {
		all := map[string]any{"iss": h.hub.URL(), "sub": "github:bob", "aud": []string{"kubectl"}, "sid": "s", "uid": "u", "iat": now.Unix(), "exp": now.Add(10 * time.Minute).Unix(),
			"groups": []string{"github:acme/web", "ldap:cn=ops,dc=example"}}
		maps.Copy(all, change)
		maps.DeleteFunc(all, func(_ string, value any) bool { return value == nil })
		return all
	}
	t.Run("a user of another provider, with groups, is accepted", func(t *testing.T) {
		user, err := h.whoami(t, signed(t, set[0], claims(nil)))
		if err != nil || user.Username != "github:bob" || !slices.Equal(user.Groups, []string{"github:acme/web", "ldap:cn=ops,dc=example", "system:authenticated"}) {
			t.Errorf("the user is %v (%v)", user, err)
		}
	})
	foreign, err := keys.New(now)
	if err != nil {
		t.Fatal(err)
	}
	disguised := foreign
	disguised.ID = set[0].ID
	for name, tt := range map[string]struct {
		key    keys.Key
		change map[string]any
	}{
		"of a foreign key":                        {foreign, nil},
		"of a foreign key under the name of ours": {disguised, nil},
		"that has expired":                        {set[0], map[string]any{"iat": now.Add(-11 * time.Minute).Unix(), "exp": now.Add(-time.Minute).Unix()}},
		"that lives for too long":                 {set[0], map[string]any{"exp": now.Add(time.Hour).Unix()}},
		"for one member":                          {set[0], map[string]any{"aud": []string{"cluster:default/member"}}},
		"of another issuer":                       {set[0], map[string]any{"iss": "https://other.example.com"}},
		"of system:admin":                         {set[0], map[string]any{"sub": "system:admin"}},
		"of a node":                               {set[0], map[string]any{"sub": "system:node:n1"}},
		"of a user of the hub":                    {set[0], map[string]any{"sub": "hub:admin"}},
		"of a user without a provider":            {set[0], map[string]any{"sub": "kubernetes-admin"}},
		"of a provider without a user":            {set[0], map[string]any{"sub": "local:"}},
		"of a provider that looks alike":          {set[0], map[string]any{"sub": "lоcal:alice"}},
		"with a group of the system":              {set[0], map[string]any{"groups": []string{"github:acme", "system:masters"}}},
		"with a group of the hub":                 {set[0], map[string]any{"groups": []string{"hub:admins"}}},
		"with a group without a provider":         {set[0], map[string]any{"groups": []string{"admins"}}},
		"without a UID":                           {set[0], map[string]any{"uid": nil}},
		"without a time":                          {set[0], map[string]any{"iat": nil}},
	} {
		t.Run("one "+name+" is refused", func(t *testing.T) {
			user, err := h.whoami(t, signed(t, tt.key, claims(tt.change)))
			if err == nil || !strings.Contains(err.Error(), "must be logged in") {
				t.Errorf("the user is %v (%v)", user, err)
			}
		})
	}
}

// rotate changes the Secret of the keys as if an hour had passed. The API server is restarted in between, because it
// caches the keys for 10 minutes.
func (h *trustingHub) rotate(t *testing.T, secret, former string) {
	next, err := keys.New(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	h.publish(t, append(h.keys(t), next))
	kill(t, h.hub.Manager)
	if err := h.hub.Restart(within(t, 2*time.Minute), lab.APIServer); err != nil {
		t.Fatalf("without the issuer: %v", err)
	}
	if user, err := h.whoami(t, former); err == nil {
		t.Errorf("without the issuer's keys the API server knows the user %v", user)
	}
	if err := h.hub.StartManager(within(t, 2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	h.awaitAlice(t, former)
	set := h.keys(t)
	set[len(set)-1].Created = time.Now().Add(-keys.Lead - time.Minute)
	set[0].Created = set[len(set)-1].Created.Add(-time.Hour)
	h.publish(t, set)
	var fresh string
	testkit.Eventually(t, time.Minute, func(context.Context) error { // the manager reads the keys from a cache
		fresh = signIn(t, h.system, "alice", secret)
		parsed, err := jwt.ParseSigned(fresh, []jose.SignatureAlgorithm{jose.ES256})
		if err == nil && parsed.Headers[0].KeyID != next.ID {
			err = errors.New("the next key does not sign yet")
		}
		return err
	})
	for name, token := range map[string]string{"the next": fresh, "the former": former} {
		if user, err := h.whoami(t, token); err != nil || user.Username != "local:alice" {
			t.Errorf("the token of %s key makes %v (%v)", name, user, err)
		}
	}
}

func (h *trustingHub) keys(t *testing.T) keys.Set {
	t.Helper()
	set, err := keys.Decode(secret(t, h.hub.Plane, "drover-system", signin.KeysSecret).Data[signin.KeyOfKeys])
	if err != nil || len(set) == 0 {
		t.Fatalf("the hub has %d keys (%v)", len(set), err)
	}
	return set
}

// publish stores keys and waits until the manager publishes them.
func (h *trustingHub) publish(t *testing.T, set keys.Set) {
	t.Helper()
	raw, err := keys.Encode(set)
	if err != nil {
		t.Fatal(err)
	}
	object := secret(t, h.hub.Plane, "drover-system", signin.KeysSecret)
	object.Data[signin.KeyOfKeys] = raw
	if err := h.hub.Client.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	bundle, err := h.hub.Bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		published, err := fetch(ctx, &http.Client{Transport: transport}, h.hub.URL()+signin.PathKeys)
		if err == nil && !strings.Contains(published, set[len(set)-1].ID) {
			err = errors.New("the last key is not published")
		}
		return err
	})
}

// signed signs claims without changing them.
func signed(t *testing.T, key keys.Key, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key.Private}, (&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", key.ID))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
