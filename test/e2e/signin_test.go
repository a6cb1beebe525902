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

// TestALocalUserSignsIn has an administrator create a user with the plugin. The user signs in as kubelogin does, and
// kubectl works in a member as local:alice.
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
	t.Run("an administrator with a ClusterRole that the hub does not have is refused, and no User is made", func(t *testing.T) {
		out, err := exec.CommandContext(within(t, time.Minute), filepath.Join(pluginDir(t), "kubectl-drover"), "user", "create", "root", "--cluster-role", "nosuch",
			"--kubeconfig", filepath.Join(s.dir, "hub-admin.kubeconfig")).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "the hub has no ClusterRole nosuch") {
			t.Errorf("user create: %v, %s, want an error that names the ClusterRole", err, out)
		}
		if out, err := s.hub.Kubectl(t.Context(), nil, "get", "users.cluster.drover.dev", "root", "--ignore-not-found"); err != nil || out != "" {
			t.Errorf("the Users are %q (%v), want no User root", out, err)
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

// startSignIn starts a hub where users sign in.
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

// makeUser creates a User with the plugin, as an administrator of the hub.
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

// awaitKeys waits until the leader has created the keys that sign tokens.
func awaitKeys(t *testing.T, s *system) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		return s.hub.Client.Get(ctx, client.ObjectKey{Namespace: "drover-system", Name: signin.KeysSecret}, &corev1.Secret{})
	})
}

// signIn does what kubelogin and a browser do, and returns the ID token after renewing it once.
func signIn(t *testing.T, s *system, user, secret string) string {
	t.Helper()
	awaitKeys(t, s)
	ctx := within(t, 2*time.Minute)
	v := newVisitor(t, s, user, secret)
	got, err := v.login(ctx)
	if err == nil {
		got, err = v.renew(ctx, got) // as ten minutes later, with the manager's own rights and policies
	}
	if err != nil {
		t.Fatal(err)
	}
	return idToken(got)
}

// visitor is a user with a browser and an OpenID Connect client, which consists of go-oidc and oauth2.
type visitor struct {
	hub, user, secret string
	account           string // the provider that the form is for, if there are several
	browser, client   *http.Client
	provider          *oidc.Provider
}

func newVisitor(t *testing.T, s *system, user, secret string) *visitor {
	t.Helper()
	bundle, err := s.hub.Bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	v := &visitor{hub: s.hub.URL(), user: user, secret: secret, client: &http.Client{Transport: transport}}
	v.browser = &http.Client{Transport: transport, Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error { // the cache of a manager that has just begun
		v.provider, err = oidc.NewProvider(oidc.ClientContext(ctx, v.client), v.hub)
		return err
	})
	return v
}

func (v *visitor) app() *oauth2.Config {
	return &oauth2.Config{ClientID: "kubectl", RedirectURL: "http://localhost:8000", Scopes: []string{"openid", "offline_access"}, Endpoint: v.provider.Endpoint()}
}

// login opens the login page, submits the form, and redeems the code.
func (v *visitor) login(ctx context.Context) (*oauth2.Token, error) {
	ctx, app, verifier := oidc.ClientContext(ctx, v.client), v.app(), oauth2.GenerateVerifier()
	resp, err := v.send(ctx, app.AuthCodeURL("s", oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("nonce", "n")))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	to, err := resp.Location()
	if err != nil {
		text, _ := io.ReadAll(resp.Body)
		return nil, fmt.Errorf("the login is answered with %s and no redirect: %s", resp.Status, text)
	}
	got, err := app.Exchange(ctx, to.Query().Get("code"), oauth2.VerifierOption(verifier))
	if err != nil {
		return nil, fmt.Errorf("redeem the code: %w", err)
	}
	return got, v.verify(ctx, got)
}

// send opens a page with the login form, and submits the form.
func (v *visitor) send(ctx context.Context, address string) (*http.Response, error) {
	page, err := fetch(ctx, v.browser, address)
	if err != nil {
		return nil, fmt.Errorf("open the login page: %w", err)
	}
	found := signInRequest.FindStringSubmatch(page)
	if found == nil {
		return nil, fmt.Errorf("the login page has no form: %s", page)
	}
	form := url.Values{"request": {found[1]}, "user": {v.user}, "password": {v.secret}}
	if v.account != "" {
		form.Set("provider", v.account)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, v.hub+"/v1/auth/login", strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Origin", v.hub)
	return v.browser.Do(req)
}

// renew uses the refresh token.
func (v *visitor) renew(ctx context.Context, before *oauth2.Token) (*oauth2.Token, error) {
	ctx = oidc.ClientContext(ctx, v.client)
	got, err := v.app().TokenSource(ctx, &oauth2.Token{RefreshToken: before.RefreshToken}).Token()
	if err != nil {
		return nil, fmt.Errorf("renew: %w", err)
	}
	return got, v.verify(ctx, got)
}

// verify checks the ID token with the published keys.
func (v *visitor) verify(ctx context.Context, t *oauth2.Token) error {
	_, err := v.provider.Verifier(&oidc.Config{ClientID: "kubectl"}).Verify(ctx, idToken(t))
	return err
}

func idToken(t *oauth2.Token) string {
	raw, _ := t.Extra("id_token").(string)
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
