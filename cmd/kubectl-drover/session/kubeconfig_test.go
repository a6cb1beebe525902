// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

// tokenMaker is a hub that creates tokens for Clusters, except Clusters named bad.
type tokenMaker struct {
	session *login.Session
	valid   map[string]bool // by ID
	made    int
	stays   bool // refuses to revoke
}

func newTokenMaker(t *testing.T) *tokenMaker {
	t.Helper()
	m := &tokenMaker{valid: map[string]bool{}}
	hub := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, revoked := strings.CutPrefix(r.URL.Path, pathTokens+"/")
		var wanted wantedToken
		switch {
		case revoked && m.stays:
			http.Error(w, "{}", http.StatusServiceUnavailable)
		case revoked && r.Method == http.MethodDelete:
			delete(m.valid, id)
			_, _ = w.Write([]byte("{}"))
		case r.URL.Path == pathTokens && r.Method == http.MethodPost && json.NewDecoder(r.Body).Decode(&wanted) == nil && !strings.HasSuffix(wanted.Cluster, "/bad"):
			m.made++
			id := fmt.Sprint("id", m.made)
			m.valid[id] = true
			w.WriteHeader(http.StatusCreated)
			_ = json.NewEncoder(w).Encode(scriptToken{ID: id, Cluster: wanted.Cluster, Token: "token-" + id + ":secret"})
		default:
			http.Error(w, `{"kind":"Status","message":"too many tokens"}`, http.StatusForbidden)
		}
	}))
	t.Cleanup(hub.Close)
	m.session = &login.Session{Issuer: hub.URL, CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hub.Certificate().Raw}), Token: "session-secret"}
	return m
}

func (m *tokenMaker) write(t *testing.T, to target, names ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	c, list := &cobra.Command{}, reachable{}
	c.SetContext(t.Context())
	c.SetOut(&out)
	for _, name := range names {
		list.Items = append(list.Items, reachableCluster{Namespace: "team", Name: name})
	}
	err := (&options{}).writeKubeconfig(c, to, m.session, list, names)
	return out.String(), err
}

func TestAKubeconfigWithTokensHasOneForEachClusterAndIsTheUsersAlone(t *testing.T) {
	m, file := newTokenMaker(t), filepath.Join(t.TempDir(), "ci")
	if out, err := m.write(t, target{static: true, file: file}, "prod", "test"); err != nil || out != "" {
		t.Fatal(out, err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v (%v)", info.Mode(), err)
	}
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var tokens []string
	for name, context := range config.Contexts {
		user := config.AuthInfos[context.AuthInfo]
		if user == nil || user.Exec != nil || !strings.HasSuffix(config.Clusters[context.Cluster].Server, "/k8s/clusters/"+strings.Split(name, "@")[0]) {
			t.Fatalf("context %s is %+v of %+v", name, context, user)
		}
		tokens = append(tokens, user.Token)
	}
	slices.Sort(tokens)
	if want := []string{"token-id1:secret", "token-id2:secret"}; !slices.Equal(tokens, want) || len(config.AuthInfos) != 2 {
		t.Errorf("the tokens are %q of %d users, want %q", tokens, len(config.AuthInfos), want)
	}
	if out, err := m.write(t, target{static: true}, "prod"); err != nil || !strings.Contains(out, "token-id3:secret") || strings.Contains(out, "session-secret") {
		t.Errorf("printed is %q (%v)", out, err)
	}
}

// If a kubeconfig cannot be written, there must be no tokens left that are valid for a month and that the user never
// saw.
func TestAKubeconfigThatIsNotWrittenLeavesNoTokenAndNoFile(t *testing.T) {
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken")
	if err := os.WriteFile(taken, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		file     string
		clusters []string
		problem  string
		made     int
	}{
		"the file exists":                  {taken, []string{"prod"}, "exists: use another file", 0},
		"the folder does not":              {filepath.Join(dir, "none", "file"), []string{"prod"}, "no such file", 0},
		"the hub makes no more":            {filepath.Join(dir, "new"), []string{"prod", "test", "bad", "last"}, "create a token for cluster team/bad: ", 2},
		"the hub makes no more, to stdout": {"", []string{"prod", "bad"}, "too many tokens", 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTokenMaker(t)
			out, err := m.write(t, target{static: true, file: tt.file}, tt.clusters...)
			if err == nil || !strings.Contains(err.Error(), tt.problem) || strings.Contains(out+fmt.Sprint(err), "secret") {
				t.Errorf("%q, %v; want the problem %q and no token", out, err, tt.problem)
			}
			if m.made != tt.made || len(m.valid) != 0 {
				t.Errorf("%d tokens were made, want %d, and %v are valid", m.made, tt.made, slices.Collect(maps.Keys(m.valid)))
			}
		})
	}
	left, err := os.ReadDir(dir)
	if kept, _ := os.ReadFile(taken); err != nil || len(left) != 1 || string(kept) != "mine" {
		t.Errorf("left are %v, and in the file is %q", left, kept)
	}
	t.Run("it names those that could not be revoked", func(t *testing.T) {
		m := newTokenMaker(t)
		m.stays = true
		if _, err := m.write(t, target{static: true}, "prod", "bad"); err == nil || !strings.Contains(err.Error(), "the token id1 for cluster team/prod was not revoked: ") {
			t.Error(err)
		}
	})
	t.Run("also of a write that fails", func(t *testing.T) {
		m, c := newTokenMaker(t), &cobra.Command{}
		c.SetContext(t.Context())
		c.SetOut(full{})
		list := reachable{Items: []reachableCluster{{Namespace: "team", Name: "prod"}}}
		if err := (&options{}).writeKubeconfig(c, target{static: true, all: true}, m.session, list, nil); !errors.Is(err, errFull) || m.made != 1 || len(m.valid) != 0 {
			t.Errorf("%v, %d tokens made, %d valid", err, m.made, len(m.valid))
		}
	})
}

var errFull = errors.New("no space left")

// full is a writer that fails.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }
