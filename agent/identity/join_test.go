// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/agenttest"
)

const token = "a-join-token-that-must-stay-secret-0123456789"

func newInput(t *testing.T) JoinInput {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return JoinInput{Token: token, Key: key, ClusterUID: "member-uid"}
}

func trusting(t *testing.T, ca *agenttest.Authority, servers ...string) Endpoint {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(ca.Bundle())) {
		t.Fatal("no certificate")
	}
	return Endpoint{Servers: servers, Roots: pool}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	t.Run("proves that it has the key, for this token and this member", func(t *testing.T) {
		t.Parallel()
		ca := agenttest.NewAuthority(t, "ca")
		hub := agenttest.NewHub(t, ca)
		hub.OnRegister(func(got string, r protocol.RegisterRequest) (int, any) {
			if got != token || r.ClusterUID != "member-uid" ||
				!ed25519.Verify(r.PublicKey, protocol.ProofPayload(token, "member-uid"), r.Proof) {
				t.Errorf("got %q, %+v", got, r)
			}
			return http.StatusOK, hub.Accepted()
		})
		out, err := Join(t.Context(), trusting(t, ca, hub.URL), newInput(t))
		if err != nil || out.Cluster.String() != "team-a/member" {
			t.Errorf("joined as %+v, %v, want team-a/member", out, err)
		}
	})

	t.Run("goes on to the next server when one is down", func(t *testing.T) {
		t.Parallel()
		ca := agenttest.NewAuthority(t, "ca")
		hub := agenttest.NewHub(t, ca)
		if _, err := Join(t.Context(), trusting(t, ca, "https://127.0.0.1:1", hub.URL), newInput(t)); err != nil {
			t.Error(err)
		}
	})

	t.Run("CVE-2024-22030: no token over a connection that does not verify, or without TLS", func(t *testing.T) {
		t.Parallel()
		hub := agenttest.NewHub(t, agenttest.NewAuthority(t, "theirs"))
		plain := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			t.Errorf("the token went out in the clear: %v", r.Header)
		}))
		t.Cleanup(plain.Close)
		_, err := Join(t.Context(), trusting(t, agenttest.NewAuthority(t, "ours"), hub.URL, plain.URL), newInput(t))
		if err == nil || strings.Contains(err.Error(), token) {
			t.Errorf("got %v", err)
		}
		if len(hub.Seen()) > 0 {
			t.Error("a request was sent to a hub of another CA")
		}
	})
}

func TestJoinRefusals(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status  int
		body    any
		refused bool
		says    string
	}{
		"401 with a reason": {401, protocol.Refusal{Reason: "TokenExpired", Message: "make a new one"}, true,
			"TokenExpired: make a new one"},
		"403 with a reason": {403, protocol.Refusal{Reason: "IdentityMismatch", Message: "another cluster"}, true,
			"IdentityMismatch"},
		"409":                {409, protocol.Refusal{Reason: "TokenUsed", Message: "used"}, true, "TokenUsed"},
		"410 without a body": {410, nil, true, "410 Gone"},
		"a message that echoes the token": {403, protocol.Refusal{Reason: "X", Message: "bad token " + token}, true,
			"bad token <join token>"},
		"404 is a wrong URL":              {404, nil, false, "DROVER_SERVER"},
		"500 is the hub's fault":          {500, nil, false, "500"},
		"an answer that names no cluster": {200, protocol.RegisterResponse{}, false, "names no cluster"},
		"settings that cannot be used": {200, protocol.RegisterResponse{
			Cluster: protocol.ClusterRef{Namespace: "a", Name: "b", UID: "c"}, Audience: "d",
			Settings: protocol.Settings{Servers: []string{"http://x"}},
		}, false, "not an https URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ca := agenttest.NewAuthority(t, "ca")
			hub := agenttest.NewHub(t, ca)
			hub.OnRegister(func(string, protocol.RegisterRequest) (int, any) { return tc.status, tc.body })
			_, err := Join(t.Context(), trusting(t, ca, hub.URL), newInput(t))
			var refused *refusedError
			if err == nil || errors.As(err, &refused) != tc.refused || !strings.Contains(err.Error(), tc.says) ||
				strings.Contains(err.Error(), token) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("Retry-After is honoured", func(t *testing.T) {
		t.Parallel()
		err := &refusedError{StatusCode: 429, RetryAfter: time.Hour}
		if err.Refused() != time.Hour {
			t.Errorf("got %s", err.Refused())
		}
	})
}
