// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/testkit"
)

// Valid specs of AuthProviders. Each of the bad specs differs from a valid one in one detail.
const (
	goodOIDC   = `{oidc: {url: "https://login.example.com/realms/a", clientID: drover, clientSecret: {name: okta, key: clientSecret}}}`
	goodGitHub = `{github: {clientID: drover, clientSecret: {name: github, key: clientSecret}, organizations: [acme]}}`
	goodLDAP   = `{ldap: {servers: ["ldaps://ldap.example.com:636"], bind: {dn: "cn=drover,dc=acme", passwordSecret: {name: ldap, key: password}},
		userSearch: {base: "ou=people,dc=acme", filter: "(uid={name})", idAttribute: entryUUID, nameAttribute: uid},
		groupSearch: {source: Search, base: "ou=groups,dc=acme", filter: "(member={dn})"}}}`
	goodJWT = `{jwt: {issuer: {url: "https://ci.example.com", audiences: [drover]},
		claimMappings: {username: {claim: sub}}}}`
)

func provider(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	o := object(t, "", "AuthProvider", spec)
	o.SetNamespace("")
	o.SetName(name)
	return o
}

func TestTheAPIServerTakesGoodAuthProvidersAndRefusesBadOnes(t *testing.T) {
	env := testkit.Shared(t)
	dryRun := func(o client.Object) error { return env.Client.Create(t.Context(), o, client.DryRunAll) }
	for name, spec := range goodProviders() {
		t.Run(name, func(t *testing.T) {
			if err := dryRun(provider(t, "sample", spec)); err != nil {
				t.Error(err)
			}
		})
	}
	for name, tt := range badProviders() {
		t.Run(name, func(t *testing.T) {
			o := provider(t, "sample", tt.spec)
			if tt.name != "" {
				o.SetName(tt.name)
			}
			err := dryRun(o)
			if err == nil {
				t.Fatal("taken")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("refused with %q, want %q", err, tt.want)
			}
		})
	}
}

func goodProviders() map[string]string {
	in := strings.NewReplacer
	return map[string]string{
		"an OpenID provider": goodOIDC,
		"with all that can be said": in("clientID", "scopes: [profile, groups], nameClaim: email, groupsClaim: 'https://a/roles', allowedGroups: [ops], clientID").Replace(
			goodOIDC,
		),
		"with a prompt and in lower case": in("clientID", "prompt: login consent, lowercaseNames: true, clientID").Replace(
			goodOIDC,
		),
		"with no prompt":                in("clientID", "prompt: '', clientID").Replace(goodOIDC),
		"without scopes":                in("clientID", "scopes: [], clientID").Replace(goodOIDC),
		"at a port and an IPv6 address": in("login.example.com", "[::1]:8443").Replace(goodOIDC),
		"GitHub":                        goodGitHub,
		"a GitHub Enterprise": in("clientID", `url: "https://github.example.com/", teams: [acme/ops], clientID`).Replace(
			goodGitHub,
		),
		"GitHub for all the world": in("organizations: [acme]", "anyUser: true").Replace(goodGitHub),
		"a directory":              goodLDAP,
		"Active Directory": in("source: Search", "source: TokenGroups", `, filter: "(member={dn})"`, "").Replace(
			goodLDAP,
		),
		"StartTLS, and a second server": in(`"ldaps://ldap.example.com:636"`, `"ldap://a.example.com", "ldap://b.example.com"`).Replace(
			goodLDAP,
		),
		"groups in groups":                 in("source: Search", "source: Search, depth: 10").Replace(goodLDAP),
		"a provider that is switched off":  in("{oidc", "{disabled: true, oidc").Replace(goodOIDC),
		"a service account by its address": in("cn=drover,dc=acme", "drover@example.com").Replace(goodLDAP),
	}
}

// badProviders are specs or names that are rejected.
func badProviders() map[string]struct{ name, spec, want string } {
	type bad = struct{ name, spec, want string }
	without := func(spec, old, replacement string) string {
		if !strings.Contains(spec, old) {
			return "{unknown: " + old + "}"
		}
		return strings.Replace(spec, old, replacement, 1)
	}
	all := map[string]bad{
		"nothing":       {"", "{}", "exactly one of"},
		"only disabled": {"", "{disabled: true}", "exactly one of"},
		"two types":     {"", goodOIDC[:len(goodOIDC)-1] + ", " + goodGitHub[1:], "exactly one of"},
		"three types": {
			"", goodOIDC[:len(goodOIDC)-1] + ", " + goodGitHub[1:len(goodGitHub)-1] + ", " + goodLDAP[1:], "exactly one of",
		},
		"a secret in the spec": {"", without(goodOIDC, "{name: okta, key: clientSecret}", "hunter2"), "clientSecret"},
		"no secret": {
			"", without(goodOIDC, ", clientSecret: {name: okta, key: clientSecret}", ""), "clientSecret: Required value",
		},
		"a Secret without a name":      {"", without(goodOIDC, "name: okta", "name: ''"), "clientSecret.name"},
		"a key that is a path":         {"", without(goodOIDC, "key: clientSecret", "key: a/b"), "clientSecret.key"},
		"no client":                    {"", without(goodOIDC, "clientID: drover", "clientID: ''"), "clientID"},
		"a scope with a space":         {"", without(goodOIDC, "clientID", "scopes: ['a b'], clientID"), "scopes"},
		"a prompt that asks nothing":   {"", without(goodOIDC, "clientID", "prompt: none, clientID"), "prompt"},
		"a scope twice":                {"", without(goodOIDC, "clientID", "scopes: [a, a], clientID"), "Duplicate value"},
		"an allowed group of no name":  {"", without(goodOIDC, "clientID", "allowedGroups: [''], clientID"), "allowedGroups"},
		"GitHub without organizations": {"", without(goodGitHub, ", organizations: [acme]", ""), "set organizations"},
		"GitHub for no organization":   {"", without(goodGitHub, "[acme]", "[]"), "set organizations"},
		"GitHub, and not any user": {
			"", without(goodGitHub, "organizations: [acme]", "anyUser: false"), "set organizations",
		},
		"teams without organizations": {
			"", without(goodGitHub, "organizations: [acme]", "teams: [acme/ops]"), "set organizations",
		},
		"a GitHub without TLS": {
			"", without(goodGitHub, "clientID", `url: "http://github.example.com", clientID`), "github.url",
		},
		"a GitHub with a path": {
			"", without(goodGitHub, "clientID", `url: "https://github.example.com/api/v3", clientID`), "github.url",
		},
		"no server":                    {"", without(goodLDAP, `"ldaps://ldap.example.com:636"`, ""), "servers"},
		"a directory without a scheme": {"", without(goodLDAP, "ldaps://", ""), "servers"},
		"a directory over HTTP":        {"", without(goodLDAP, "ldaps://", "https://"), "servers"},
		"a search in the address":      {"", without(goodLDAP, ":636", "/dc=acme??sub"), "servers"},
		"a service account of no name": {"", without(goodLDAP, "cn=drover,dc=acme", ""), "bind.dn"},
		"no base":                      {"", without(goodLDAP, "ou=people,dc=acme", ""), "userSearch.base"},
		"no filter of users":           {"", without(goodLDAP, "(uid={name})", ""), "userSearch.filter"},
		"no ID":                        {"", without(goodLDAP, "entryUUID", "''"), "idAttribute"},
		"a search without a filter": {
			"", without(goodLDAP, `, filter: "(member={dn})"`, ""), "set filter if, and only if",
		},
		"a filter without a search": {
			"", without(goodLDAP, "source: Search", "source: MemberOf"), "set filter if, and only if",
		},
		"an unknown source":     {"", without(goodLDAP, "source: Search", "source: Members"), "supported values"},
		"a depth without end":   {"", without(goodLDAP, "source: Search", "source: Search, depth: 11"), "depth"},
		"a depth below nothing": {"", without(goodLDAP, "source: Search", "source: Search, depth: -1"), "depth"},
		"the name hub":          {"hub", goodOIDC, "metadata.name must not be hub, system"},
		"the name system":       {"system", goodOIDC, "metadata.name must not be hub, system"},
		"the name local":        {"local", goodOIDC, "metadata.name must not be hub, system"},
		"a name with a dot":     {"a.b", goodOIDC, "must be a DNS label"},
		"a name of 64 letters":  {strings.Repeat("a", 64), goodOIDC, "must be a DNS label"},
	}
	for _, url := range []string{"", "http://login.example.com", "https://", "https:///a", "https://a:b@login.example.com", "https://login.example.com?a=b", "https://login.example.com/#a",
		"https://login.example.com/a b", "ftp://login.example.com", "https://" + strings.Repeat("a", 512)} {
		all[fmt.Sprintf("the URL %.40q", url)] = bad{
			"", without(goodOIDC, "https://login.example.com/realms/a", url), "oidc.url",
		}
	}
	return all
}

// providerTypes returns a valid spec for each type of provider, by the type's field in the spec.
func providerTypes() map[string]string {
	return map[string]string{"oidc": goodOIDC, "github": goodGitHub, "ldap": goodLDAP, "jwt": goodJWT}
}

// A type that is missing in providerTypes would not be tested below.
func TestEveryTypeOfAuthProviderHasAGoodSpec(t *testing.T) {
	specs, spec := providerTypes(), reflect.TypeFor[v1.AuthProviderSpec]()
	for i := range spec.NumField() {
		name, _, _ := strings.Cut(spec.Field(i).Tag.Get("json"), ",")
		if _, known := specs[name]; spec.Field(i).Type.Kind() == reflect.Pointer && !known {
			t.Errorf("spec.%s has no entry in providerTypes: add one", name)
		}
	}
}

func TestTheTypeOfAnAuthProviderStaysAndTheRestChanges(t *testing.T) {
	env := testkit.Shared(t)
	specs := providerTypes()
	for from, spec := range specs {
		o := provider(t, "changing-"+from+"-"+env.Workspace(t), spec)
		env.Apply(t, o)
		t.Cleanup(func() { _ = env.Client.Delete(context.Background(), o) })
		for to, next := range specs {
			o.Object["spec"] = provider(t, "a", next).Object["spec"]
			err := env.Client.Update(t.Context(), o, client.DryRunAll)
			refused := err != nil && strings.Contains(err.Error(), "the type of a provider cannot be changed")
			if refused == (from == to) || from == to && err != nil {
				t.Errorf("from %s to %s: got the error %v, want a refusal: %t", from, to, err, from != to)
			}
		}
		o.Object["spec"] = provider(t, "a", strings.NewReplacer("clientID: drover", "clientID: other, caBundle: x", "uid={name}", "cn={name}", "{oidc", "{disabled: true, oidc").Replace(spec)).Object["spec"]
		if err := env.Client.Update(t.Context(), o, client.DryRunAll); err != nil {
			t.Errorf("a change within %s: %v", from, err)
		}
	}
}
