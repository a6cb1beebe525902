// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// testCVE2025_23388: in Rancher, anyone could send a body that made the server recurse until its stack was full. The
// hub reads no body from a client that has not authenticated. The claims of a token are parsed before their signature
// is verified, so their depth is limited.
func testCVE2025_23388(t *testing.T, w *world) {
	c := w.client(true)
	join := w.cluster("nested")
	for name, nested := range map[string]string{
		"lists":   strings.Repeat("[", 400_000),
		"objects": strings.Repeat(`{"a":`, 100_000),
		"closed":  `{"publicKey":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`,
	} {
		claims := nested[:min(len(nested), 30_000)] // as much as fits into a header
		token := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"EdDSA","typ":"JWT"}`)) + "." +
			base64.RawURLEncoding.EncodeToString([]byte(claims)) + "." +
			base64.RawURLEncoding.EncodeToString(make([]byte, 64))
		header := base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".e30." +
			base64.RawURLEncoding.EncodeToString(make([]byte, 64))
		for _, request := range []struct{ method, path, bearer string }{
			{http.MethodPost, protocol.PathRegister, ""},
			{http.MethodPost, protocol.PathRegister, "unknown-token-of-thirty-two-characters"},
			{http.MethodPost, protocol.PathRegister, join},
			{http.MethodGet, protocol.PathConnect, token},
			{http.MethodGet, protocol.PathConnect, header},
			{http.MethodPost, protocol.PathCACerts, ""},
			{http.MethodPost, protocol.PathImport + "x.yaml", ""},
			{http.MethodPost, "/k8s/clusters/a/b/api/v1/namespaces", ""},
			{http.MethodPost, "/k8s/clusters/a/b/api/v1/namespaces", token},
			{http.MethodPost, "/k8s/local/api/v1/namespaces", ""},
			{http.MethodPost, "/healthz", ""},
			{http.MethodPost, "/metrics", token},
		} {
			base := w.base
			if request.path == "/metrics" {
				base = w.at(t, "metrics").base
			}
			req, err := http.NewRequestWithContext(t.Context(), request.method, "https://"+base+request.path,
				strings.NewReader(nested))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if request.bearer != "" {
				req.Header.Set("Authorization", "Bearer "+request.bearer)
			}
			resp, err := c.Do(req)
			if err != nil {
				t.Errorf("%s: %s %s: %v, want a response", name, request.method, request.path, err)
				continue
			}
			raw, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode < 400 || resp.StatusCode >= 500 || len(raw) > 4<<10 {
				t.Errorf("%s: %s %s: %d with %d bytes, want a short refusal", name, request.method, request.path, resp.StatusCode,
					len(raw))
			}
		}
	}
	if got := w.send(c, http.MethodGet, "/healthz", ""); got.code != http.StatusOK {
		t.Errorf("the hub responds with %d afterwards, want it healthy", got.code)
	}
}

// testCVE2023_22650: in Rancher, the tokens of a deleted user remained valid. The hub accepts a token only as long as
// its API server does. It caches a review for 10 s, and the API server caches for as long. Open connections end at the
// next review.
func testCVE2023_22650(t *testing.T, w *world) {
	c, m := w.client(true), w.moves(t, "left")
	token, demoted, stayer := w.reader("leaver"), w.reader("demoted"), w.reader("stayer")
	watches := []<-chan error{w.watch(t, c, m.path, token), w.watch(t, c, m.path, demoted)}
	sh, goesOn := w.shell(t, m.path, demoted), w.watch(t, c, m.path, stayer)
	if err := w.Client.Delete(t.Context(),
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: w.roleOf("demoted")}}); err != nil {
		t.Fatal(err)
	}
	if got := w.send(c, http.MethodGet, "/k8s/local/version", token); got.code != http.StatusOK {
		t.Fatalf("before the deletion: %d %s, want 200", got.code, got.body)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "leaver"}}
	if err := w.Client.Delete(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if got := w.send(c, http.MethodGet, "/k8s/local/version", token); got.code != http.StatusUnauthorized {
			return fmt.Errorf("the token still gets %d", got.code)
		}
		return nil
	})
	w.Apply(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "leaver"}})
	if got := w.send(c, http.MethodGet, "/k8s/local/version", token); got.code != http.StatusUnauthorized {
		t.Errorf("the token gets %d once another account has the same name, want it refused", got.code)
	}
	for i, watch := range watches {
		select {
		case err := <-watch:
			if err != nil {
				t.Errorf("watch %d ended with %v, want it ended between two events", i, err)
			}
		case <-time.After(time.Minute):
			t.Errorf("watch %d goes on, want it ended", i)
		}
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if sh.says("still here") == nil {
			return errors.New("the shell goes on")
		}
		return nil
	})
	select {
	case err := <-goesOn:
		t.Errorf("the watch of a user who still has the right ended: %v", err)
	default:
	}
}
