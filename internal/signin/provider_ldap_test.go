// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	goldap "github.com/go-ldap/ldap/v3"
	"golang.org/x/oauth2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/login"
	"github.com/drover-dev/drover/internal/signin/refresh"
	"github.com/drover-dev/drover/test/testkit/directory"
)

const aliceOfDirectory = "uid=Alice,ou=people," + directory.Suffix

// inDirectory has alice, who is in the groups ops and others.
const inDirectory = `
dn: ` + aliceOfDirectory + `
objectClass: inetOrgPerson
uid: Alice
cn: Alice
sn: Alice
userPassword: password of alice

dn: cn=ops,ou=groups,` + directory.Suffix + `
objectClass: groupOfNames
cn: ops
member: ` + aliceOfDirectory + `

dn: cn=others,ou=groups,` + directory.Suffix + `
objectClass: groupOfNames
cn: others
member: ` + aliceOfDirectory + `
`

// provideDirectory starts slapd and adds an AuthProvider for it.
func (f *fixture) provideDirectory() (*directory.Server, *v1.AuthProvider) {
	f.t.Helper()
	server, err := directory.StartOpenLDAP(f.t.Context(), inDirectory)
	if errors.Is(err, directory.ErrMissing) {
		f.t.Skip(err)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(server.Stop)
	f.Apply(f.t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "ldap",
		Labels: map[string]string{v1.LabelSecretKind: v1.SecretKindProvider}},
		Data: map[string][]byte{"password": []byte(server.BindPassword)}})
	provider := &v1.AuthProvider{ObjectMeta: metav1.ObjectMeta{Name: "d-" + f.namespace},
		Spec: v1.AuthProviderSpec{LDAP: &v1.LDAPProvider{
			Servers: []string{server.LDAPS}, CABundle: string(server.CA),
			Bind: v1.LDAPBind{DN: server.BindDN, PasswordSecret: v1.ProviderSecret{Name: "ldap", Key: "password"}},
			UserSearch: v1.LDAPUserSearch{Base: "ou=people," + directory.Suffix,
				Filter: "(&(objectClass=inetOrgPerson)(uid={name}))", IDAttribute: "entryUUID", NameAttribute: "uid"},
			GroupSearch: v1.LDAPGroupSearch{Source: "Search", Base: "ou=groups," + directory.Suffix, Filter: "(member={dn})"},
		}}}
	f.Apply(f.t, provider)
	f.t.Cleanup(func() { _ = f.Client.Delete(context.Background(), provider) })
	return server, provider
}

// loginAt sends the form with a provider chosen.
func (f *fixture) loginAt(verifier string, provider *v1.AuthProvider, user, password string) response {
	f.t.Helper()
	b, config := f.browser(), f.config()
	config.Scopes = append(config.Scopes, "offline_access")
	page := f.send(b, http.MethodGet, config.AuthCodeURL("state", oauth2.S256ChallengeOption(verifier)), nil, nil)
	request := hidden.FindStringSubmatch(page.body)
	if request == nil || !strings.Contains(page.body, provider.Name) {
		f.t.Fatalf("the login page does not offer the directory: %d %s", page.code, page.body)
	}
	return f.send(b, http.MethodPost, f.server.URL+login.PathLogin,
		url.Values{"request": {request[1]}, "provider": {provider.Name}, "user": {user}, "password": {password}},
		http.Header{"Origin": {f.server.URL}})
}

func TestUserOfADirectorySignsInAndIsCheckedAtRefresh(t *testing.T) {
	f := newFixture(t)
	server, provider := f.provideDirectory()
	for name, password := range map[string]string{"a wrong password": "wrong", "no password": ""} {
		if got := f.loginAt(oauth2.GenerateVerifier(), provider, "alice", password); got.code != http.StatusForbidden ||
			!strings.Contains(got.body, wrongPassword) {
			t.Errorf("%s: the response is %d %s", name, got.code, got.body)
		}
	}
	verifier := oauth2.GenerateVerifier()
	back, err := url.Parse(f.loginAt(verifier, provider, "alice", "password of alice").header.Get("Location"))
	if err != nil || back.Query().Get("code") == "" {
		t.Fatalf("alice is sent to %s (%v), with no code", back, err)
	}
	tokens, err := f.config().Exchange(context.WithValue(t.Context(), oauth2.HTTPClient, f.server.Client()),
		back.Query().Get("code"), oauth2.VerifierOption(verifier))
	if err != nil {
		t.Fatal(err)
	}
	id, err := f.authenticated(tokens.AccessToken)
	if err != nil || id.User != provider.Name+":alice" || !slices.Equal(id.Groups, []string{provider.Name + ":ops"}) {
		t.Errorf("the user is %+v, %v, want alice of the directory with the one group that bindings name", id, err)
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
	_, next := f.refresh(tokens.RefreshToken)
	if id, err := f.authenticated(next.Access); err != nil || len(id.Groups) != 0 {
		t.Errorf("after alice has left the group, the user is %+v, %v, want no group", id, err)
	}
	if err := admin.Del(goldap.NewDelRequest(aliceOfDirectory, nil)); err != nil {
		t.Fatal(err)
	}
	f.wait(2 * refresh.Pause)
	if r, _ := f.refresh(next.Refresh); r.code != http.StatusBadRequest || !strings.Contains(r.body, "invalid_grant") {
		t.Errorf("after alice was deleted, the refresh gets the response %d %s, want invalid_grant", r.code, r.body)
	}
}
