// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"bufio"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// TestOpenIDClientSignsIn runs openid-client, which is certified by the OpenID Foundation, with code and
// PKCE, refresh, revocation, device code and token exchange. "npm ci" in test/openidclient installs it.
func TestOpenIDClientSignsIn(t *testing.T) {
	node, dir := nodeWith(t, "test/openidclient", "openid-client")
	f := newFixture(t)
	f.follow()
	roots := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.server.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), node, "client.mjs")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), "ISSUER="+f.server.URL, "NODE_EXTRA_CA_CERTS="+roots, "USER_NAME="+f.user.Name)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var asked struct{ What, Argument string }
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			t.Errorf("the client writes %q", lines.Text())
			break
		}
		last = asked.What
		if _, err := in.Write([]byte(f.answer(last, asked.Argument) + "\n")); err != nil {
			t.Error(err)
			break
		}
	}
	if err := cmd.Wait(); err != nil || last != "done" {
		t.Errorf("the client ended after %q: %v", last, err)
	}
}

func number(text string) int {
	n, _ := strconv.Atoi(text) // none is 0
	return n
}

// answer acts as a browser or a proxy for the client.
func (f *fixture) answer(what, argument string) string {
	switch what {
	case "sign in":
		b := f.browser()
		found := hidden.FindStringSubmatch(f.send(b, http.MethodGet, argument, nil, nil).body)
		if found == nil {
			return ""
		}
		return f.login(b, found[1], f.user.Name, secretPassword).header.Get("Location")
	case "approve":
		if _, err := url.Parse(argument); err != nil {
			return err.Error()
		}
		return strconv.Itoa(f.approved(argument).code)
	case "user of":
		id, err := f.identify(argument)
		if err != nil {
			return ""
		}
		return id.User
	case "user in team/prod of":
		id, err := f.identifyAt(inMember, argument)
		if err != nil {
			return ""
		}
		return id.User
	case "wait":
		f.wait(time.Duration(number(argument)) * time.Second)
	}
	return ""
}
