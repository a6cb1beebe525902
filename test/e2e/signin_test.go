// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/signin"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// TestALocalUserSignsIn: an administrator makes a user by the plugin, the user signs in as kubelogin does, and kubectl works in a member as local:alice.
func TestALocalUserSignsIn(t *testing.T) {
	t.Parallel()
	s := startWith(t, (*system).startSignIn)
	cluster, _ := s.imported(t, "member", s.member, protocol.AgentNamespace)
	s.await(t, cluster, time.Minute, framework.Ready)
	secret := makeUser(t, s, "alice")
	token := signIn(t, s, "alice", secret)

	t.Run("without a binding the member is out of reach", func(t *testing.T) {
		if _, err := s.kubectl(t, cluster, token, "get", "namespaces"); err == nil || !strings.Contains(err.Error(), `user "local:alice" may not reach`) {
			t.Errorf("kubectl says %v", err)
		}
	})
	for _, o := range []client.Object{
		&v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Spec: v1.RoleTemplateSpec{Context: v1.ContextCluster, External: "view"}},
		&v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: "alice"}, Spec: v1.ClusterRoleTemplateBindingSpec{
			ClusterTarget: v1.ClusterTarget{ClusterName: cluster.Name}, RoleTemplateName: "reader", Subject: v1.Subject{Kind: "User", Name: "local:alice"}}},
	} {
		if err := s.hub.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("with one, kubectl works as local:alice", func(t *testing.T) {
		testkit.Eventually(t, time.Minute, func(context.Context) error {
			_, err := s.kubectl(t, cluster, token, "get", "configmaps")
			return err
		})
		if out, err := s.kubectl(t, cluster, token, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); err != nil || out != "local:alice" {
			t.Errorf("the member knows the user as %q (%v)", out, err)
		}
		if _, err := s.kubectl(t, cluster, token, "create", "namespace", "x"); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("the user may do more than the binding says: %v", err)
		}
	})
	t.Run("the status says that the user can sign in, and no secret is in it or in a log", func(t *testing.T) {
		out, err := s.hub.Kubectl(t.Context(), nil, "get", "users.cluster.drover.dev", "alice", "-o", "yaml")
		if err != nil || !strings.Contains(out, "reason: PasswordSet") || !strings.Contains(out, "principal: local:alice") || strings.Contains(out, secret) || strings.Contains(out, "argon2") {
			t.Errorf("the User is %v\n%s", err, out)
		}
	})
	t.Run("disabled, the user is refused with the token that they have", func(t *testing.T) {
		if _, err := s.hub.Kubectl(t.Context(), nil, "patch", "users.cluster.drover.dev", "alice", "--type=merge", "-p", `{"spec":{"disabled":true}}`); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, time.Minute, func(context.Context) error {
			if _, err := s.kubectl(t, cluster, token, "get", "configmaps"); err == nil {
				return errors.New("the user is still served")
			}
			return nil
		})
	})
}

// startSignIn starts a hub at which users sign in.
func (s *system) startSignIn(t *testing.T) {
	t.Helper()
	plane, err := s.plane("hub")
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

// makeUser makes a User by the plugin, as an administrator of the hub.
func makeUser(t *testing.T, s *system, name string) string {
	t.Helper()
	admin := filepath.Join(s.dir, "hub-admin.kubeconfig")
	if err := s.hub.WriteKubeconfig(admin); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(within(t, time.Minute), filepath.Join(pluginDir(t), "kubectl-drover"), "user", "create", name, "--kubeconfig", admin).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

var signInRequest = regexp.MustCompile(`name="request" value="([^"]+)"`)

// awaitKeys waits until the leader has made the keys that sign tokens.
func awaitKeys(t *testing.T, s *system) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		return s.hub.Client.Get(ctx, client.ObjectKey{Namespace: "drover-system", Name: signin.KeysSecret}, &corev1.Secret{})
	})
}

// signIn does what kubelogin and a browser do, and returns the ID token after it was renewed once.
func signIn(t *testing.T, s *system, user, secret string) string {
	t.Helper()
	bundle, err := s.hub.Bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Transport: transport, Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	ctx := oidc.ClientContext(within(t, 2*time.Minute), &http.Client{Transport: transport})
	provider, err := oidc.NewProvider(ctx, s.hub.URL())
	if err != nil {
		t.Fatal(err)
	}
	app := &oauth2.Config{ClientID: "kubectl", RedirectURL: "http://localhost:8000", Scopes: []string{"openid", "offline_access"}, Endpoint: provider.Endpoint()}
	verifier := oauth2.GenerateVerifier()
	var page string
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error { // the leader makes the keys
		page, err = fetch(ctx, browser, app.AuthCodeURL("s", oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("nonce", "n")))
		return err
	})
	found := signInRequest.FindStringSubmatch(page)
	if found == nil {
		t.Fatalf("the login page has no form: %s", page)
	}
	form := url.Values{"request": {found[1]}, "user": {user}, "password": {secret}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.hub.URL()+"/v1/auth/login", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Origin", s.hub.URL())
	resp, err := browser.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	to, err := resp.Location()
	if err != nil {
		t.Fatalf("the login is answered with %s and no redirect: %v", resp.Status, err)
	}
	got, err := app.Exchange(ctx, to.Query().Get("code"), oauth2.VerifierOption(verifier))
	if err != nil {
		t.Fatal(err)
	}
	got, err = app.TokenSource(ctx, &oauth2.Token{RefreshToken: got.RefreshToken}).Token() // as ten minutes later, with the manager's own rights and policies
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := got.Extra("id_token").(string)
	if _, err := provider.Verifier(&oidc.Config{ClientID: "kubectl"}).Verify(ctx, raw); err != nil {
		t.Fatal(err)
	}
	return raw
}

func fetch(ctx context.Context, c *http.Client, address string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", resp.Status, raw)
	}
	return string(raw), err
}
