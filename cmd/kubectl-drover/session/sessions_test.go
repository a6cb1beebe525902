// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

// sessionHub is a hub with sessions. It accepts the token of the session "current" until that session has ended.
func sessionHub(t *testing.T, token string, codes map[string]int) (hub *httptest.Server, ended *[]string) {
	t.Helper()
	ended = &[]string{}
	mux := http.NewServeMux()
	mux.HandleFunc("DELETE "+pathSessions+"/{id}", func(w http.ResponseWriter, r *http.Request) {
		id, code := r.PathValue("id"), http.StatusOK
		if slices.Contains(*ended, "current") || r.Header.Get("Authorization") != "Bearer "+token {
			code = http.StatusUnauthorized
		} else if codes[id] != 0 {
			code = codes[id]
		}
		if code == http.StatusOK {
			*ended = append(*ended, id)
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(`{}`))
	})
	mux.HandleFunc("POST /revoke", func(_ http.ResponseWriter, r *http.Request) {
		if r.FormValue("token") == token {
			*ended = append(*ended, "current")
		}
	})
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": hub.URL, "authorization_endpoint": hub.URL + "/a",
			"token_endpoint": hub.URL + "/t", "jwks_uri": hub.URL + "/k", "revocation_endpoint": hub.URL + "/revoke",
			"code_challenge_methods_supported": []string{"S256"}})
	})
	hub = httptest.NewTLSServer(mux)
	t.Cleanup(hub.Close)
	return hub, ended
}

// After a theft, a user ends all sessions at once, and the list begins with the current one.
func TestRevokingSessionsTriesAllAndSignsOutLast(t *testing.T) {
	token := "x." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"local:alice","sid":"current"}`)) + ".x"
	for name, tt := range map[string]struct {
		ids    string
		codes  map[string]int
		ended  string
		failed string // an ID in the error
		stays  bool
	}{
		"the current one is listed first": {"current old stolen", nil, "old stolen current", "", false},
		"one has just ended":              {"gone old current", map[string]int{"gone": 404}, "old current", "gone", false},
		"the hub is busy once":            {"busy stolen", map[string]int{"busy": 429}, "stolen", "busy", true},
		"only the current one":            {"current", nil, "current", "", false},
		"an empty ID":                     {" stolen", nil, "stolen", "revoke :", true},
	} {
		t.Run(name, func(t *testing.T) {
			hub, ended := sessionHub(t, token, tt.codes)
			t.Setenv("HOME", t.TempDir())
			t.Setenv("KUBECONFIG", t.TempDir()+"/config")
			store, err := sessions()
			if err != nil {
				t.Fatal(err)
			}
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hub.Certificate().Raw})
			err = store.Change(t.Context(), hub.URL, func(*login.Session) (*login.Session, error) {
				return &login.Session{Issuer: hub.URL, CA: ca, Token: token, Expires: time.Now().Add(time.Hour)}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{NewSession(o)} }
			var out, says strings.Builder
			args := append([]string{"session", "revoke"}, strings.Split(tt.ids, " ")...)
			code := cli.Run(t.Context(), "test", commands, args, &out, &says)
			if got := strings.Join(*ended, " "); got != tt.ended {
				t.Errorf("ended: %s, want %s (%s)", got, tt.ended, says.String())
			}
			if (code != cli.ExitAllowed) != (tt.failed != "") || !strings.Contains(says.String(), tt.failed) {
				t.Errorf("exit code %d: %s, want a failure that names %q", code, says.String(), tt.failed)
			}
			if _, err := store.Load(hub.URL); errors.Is(err, login.ErrSignedOut) == tt.stays {
				t.Errorf("the stored session: %v, want that it stays: %t", err, tt.stays)
			}
		})
	}
}
