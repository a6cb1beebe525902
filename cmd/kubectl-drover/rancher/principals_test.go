// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// login returns Rancher's record of a login.
func login(provider, id, name string, groups ...string) UserAttribute {
	var a UserAttribute
	a.ExtraByProvider = map[string]map[string][]string{provider: {"principalid": {id}, "username": {name}}}
	var items []GroupPrincipal
	for _, g := range groups {
		var principal GroupPrincipal
		principal.Metadata.Name, principal.LoginName, _ = strings.Cut(g, "=")
		items = append(items, principal)
	}
	a.GroupPrincipals = map[string]struct {
		Items []GroupPrincipal `json:"Items"`
	}{provider: {items}}
	return a
}

func user(name, username string, principals ...string) User {
	return User{ObjectMeta: metav1.ObjectMeta{Name: name}, Username: username, PrincipalIDs: append([]string{"local://" + name}, principals...)}
}

// TestBindingThatIsLeftOutTakesNoName exports two bindings of global roles whose names would be the same.
func TestBindingThatIsLeftOutTakesNoName(t *testing.T) {
	readsPods := func(rt *RoleTemplate) { rt.Rules = []rbacv1.PolicyRule{rule("get", "", "pods")} }
	in := Objects{
		Users: []User{user("u-1", "alice")},
		RoleTemplates: []RoleTemplate{
			template("view", "cluster", readsPods), template("b-view", "cluster", readsPods),
		},
		GlobalRoles: []GlobalRole{
			{ObjectMeta: metav1.ObjectMeta{Name: "one"}, InheritedClusterRoles: []string{"view"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "two"}, InheritedClusterRoles: []string{"b-view"}},
		},
		GlobalBindings: []GlobalBinding{
			{ObjectMeta: metav1.ObjectMeta{Name: "a"}, GlobalRoleName: "two", Subject: Subject{GroupName: "system:masters"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "a-b"}, GlobalRoleName: "one", Subject: Subject{UserName: "u-1"}},
		},
	}
	c := newConversion(in, Options{})
	c.bindings()
	var got []string
	for _, o := range c.out {
		if binding, is := o.Object.(*v1.ClusterRoleTemplateBinding); is {
			got = append(got, binding.Name)
		}
	}
	if !slices.Equal(got, []string{"global-a-b-view"}) {
		t.Errorf("got the bindings %q, want only global-a-b-view; the findings are %+v", got, c.report.Findings)
	}
}

func TestWhomPrincipalsAreInDrover(t *testing.T) {
	logins := []UserAttribute{
		login("github", "github_user://2", "bob", "github_org://10=Acme", "github_org://11=other", "github_team://20=Web", "github_team://21=ops"),
		login("github", "github_user://1", "Alice", "github_org://10=Acme", "github_team://20=Web"),
		login("github", "github_user://3", "evil:user"),
		login("github", "github_user://4", "was"), login("github", "github_user://4", "is"),
		login("openldap", "openldap_user://uid=carol,ou=people,dc=x", "Carol"),
		login("activedirectory", "activedirectory_user://CN=Dora Example,CN=Users,DC=x", "dora"),
		login("azuread", "azuread_user://0a-1b", "eve@example.com"),
		login("okta", "okta_user://frank", "frank"),
		login("googleoauth", "googleoauth_user://117", "grace@example.com"),
	}
	// Rancher records one value of each. If there are several, it is not known which principal has the name.
	several := login("okta", "okta_user://s1", "s1")
	several.ExtraByProvider["okta"]["principalid"] = []string{"okta_user://s1", "okta_user://s2"}
	logins = append(logins, several)
	users := []User{user("u-local", "heidi"), user("u-none", ""), user("u-two", "ivan", "github_user://1", "okta_user://ivan"), user("u-odd", "Ivan Example")}
	tests := map[string]struct{ id, name, suggested, why string }{
		"the login of an account of GitHub, in lower case":        {"github_user://1", "github:alice", "", "last signed in"},
		"an account that never signed in":                         {"github_user://99", "", "", "no login is recorded"},
		"a login that cannot be one":                              {"github_user://3", "", "", "is not valid in Drover: evil:user"},
		"an account with two logins":                              {"github_user://4", "", "", "no login is recorded"},
		"an organization":                                         {"github_org://10", "github:acme", "", "organization"},
		"an organization without a member":                        {"github_org://99", "", "", "only has the number"},
		"a team of the only organization of all its members":      {"github_team://20", "", "github:acme/web", "its members' only organization"},
		"a team whose members are in two":                         {"github_team://21", "", "", "write organization/team"},
		"another server of GitHub":                                {"githubapp_org://10", "", "", "only has the number"},
		"the login of a directory, in lower case":                 {"openldap_user://uid=carol,ou=people,dc=x", "ldap:carol", "", "last signed in"},
		"a uid that never signed in":                              {"openldap_user://uid=Mallory,ou=people,dc=x", "", "ldap:mallory", "has not signed in"},
		"a name in Active Directory is no login":                  {"activedirectory_user://CN=Someone,CN=Users,DC=x", "", "", "no login is recorded"},
		"a login of Active Directory":                             {"activedirectory_user://CN=Dora Example,CN=Users,DC=x", "activedirectory:dora", "", "last signed in"},
		"a group of a directory":                                  {"openldap_group://cn=Ops,ou=groups,dc=x", "ldap:ops", "", "nameAttribute must be cn"},
		"a group of Active Directory with a space":                {"activedirectory_group://CN=Domain Admins,CN=Users,DC=x", "activedirectory:domain admins", "", "cn"},
		"a group with an escaped comma":                           {`openldap_group://cn=a\,b,dc=x`, "", "", "plain cn="},
		"a group of two attributes":                               {"openldap_group://cn=a+ou=b,dc=x", "", "", "plain cn="},
		"a group with a colon":                                    {"openldap_group://cn=system:masters,dc=x", "", "", "is not valid in Drover"},
		"a group of FreeIPA":                                      {"freeipa_group://cn=ops,cn=groups,dc=x", "freeipa:ops", "", "cn"},
		"a group of Entra, by its ID":                             {"azuread_group://0a-1b", "azuread:0a-1b", "", "claim"},
		"a user of Entra":                                         {"azuread_user://0a-1b", "", "azuread:eve@example.com", "nameClaim"},
		"a group of an OpenID provider":                           {"genericoidc_group://ops", "genericoidc:ops", "", "claim"},
		"a user of an OpenID provider who never signed in":        {"keycloakoidc_user://6f", "", "", "nameClaim"},
		"a group of SAML":                                         {"okta_group://ops", "", "okta:ops", "Drover does not support SAML"},
		"a user of SAML":                                          {"okta_user://frank", "", "okta:frank", "decides the name"},
		"a login beside that of another one":                      {"okta_user://s1", "", "", "decides the name"},
		"a user of Google":                                        {"googleoauth_user://117", "", "googleoauth:grace@example.com", "decides the name"},
		"a group of Google":                                       {"googleoauth_group://01", "", "", "decides the name"},
		"a local user":                                            {"local://u-local", "local:heidi", "", "kubectl drover user create"},
		"a local user without a name":                             {"local://u-none", "", "", "never signed in at a provider"},
		"a local user whose name Drover does not take":            {"local://u-odd", "", "", "is not valid in Drover"},
		"a user with several principals":                          {"local://u-two", "", "", "several principals: github_user://1, okta_user://ivan"},
		"a local user who is gone":                                {"local://u-gone", "", "", "no such user"},
		"a provider that Drover does not know of":                 {"corp_user://judy", "", "", "decides the name"},
		"what is no principal":                                    {"judy", "", "", "not a principal"},
		"a group of local users, which Rancher does not have":     {"local_group://u-local", "", "", "not a principal"},
		"what has no name":                                        {"github_user://", "", "", "not a principal"},
		"a provider whose name is Drover's own is called another": {"hub_group://masters", "", "rancher-hub:masters", "SAML"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := newConversion(Objects{Users: users, UserAttributes: logins}, Options{})
			p := c.proposal(tt.id, map[string]Provider{})
			if p.Decided != tt.name || p.Name != "" || p.Suggested != tt.suggested || !strings.Contains(p.Why, tt.why) {
				t.Errorf("got %+v", p)
			}
			if p.Decided != "" && !validSubject(p.Decided) {
				t.Errorf("no binding takes %q", p.Decided)
			}
		})
	}
}

// Two principals with the same name would have each other's rights.
func TestTwoPrincipalsNeverGetOneName(t *testing.T) {
	const one, two = "openldap_group://cn=ops,ou=a,dc=x", "openldap_group://cn=OPS,ou=b,dc=x"
	for name, tt := range map[string]struct {
		given []Principal
		want  []string
	}{
		"both stay open":                  {nil, []string{"", ""}},
		"one that a person named has it":  {[]Principal{{Rancher: one, Kind: "Group", Name: "ldap:ops"}}, []string{"ldap:ops", ""}},
		"a person may name them alike":    {[]Principal{{Rancher: one, Kind: "Group", Name: "ldap:ops"}, {Rancher: two, Kind: "Group", Name: "ldap:ops"}}, []string{"ldap:ops", "ldap:ops"}},
		"one that is to have nothing has": {[]Principal{{Rancher: one, Kind: "Group", Name: NoName}}, []string{NoName, "ldap:ops"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConversion(Objects{}, Options{Mapping: Mapping{Principals: tt.given}})
			c.subjects.count[one], c.subjects.count[two] = 1, 1
			c.nameAll()
			if got := []string{c.subjects.known[one].effective(), c.subjects.known[two].effective()}; !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestWhoABindingIsFor(t *testing.T) {
	off := false
	switchedOff := user("u-off", "", "github_user://9")
	switchedOff.Enabled = &off
	users := []User{
		user("u-alice", "", "github_user://1"), user("u-bob", "bob"), switchedOff, user("u-system", "", "system://c-1"),
		user("u-two", "", "github_user://1", "okta_user://x"), user("u-admin", "admin", "github_user://5"),
	}
	tests := map[string]struct {
		subject Subject
		want    string
		class   Class
	}{
		"a user who signs in at a provider":               {Subject{UserName: "u-alice"}, "github_user://1", ""},
		"… as Rancher writes it":                          {Subject{UserName: "u-alice", UserPrincipalName: "local://u-alice"}, "github_user://1", ""},
		"a principal before the first login":              {Subject{UserPrincipalName: "github_user://77"}, "github_user://77", ""},
		"a local user":                                    {Subject{UserPrincipalName: "local://u-bob"}, "local://u-bob", ""},
		"a user with a password who also signs in at one": {Subject{UserName: "u-admin"}, "github_user://5", ""},
		"a user with two principals":                      {Subject{UserName: "u-two"}, "local://u-two", ""},
		"… of which the binding names one":                {Subject{UserName: "u-two", UserPrincipalName: "okta_user://x"}, "okta_user://x", ""},
		"a user and a principal of another user":          {Subject{UserName: "u-bob", UserPrincipalName: "github_user://1"}, "", Decide},
		"a user and a group, which Rancher refuses":       {Subject{UserName: "u-bob", GroupPrincipalName: "github_org://10"}, "", LeftOut},
		"two groups":                                    {Subject{GroupName: "system:masters", GroupPrincipalName: "github_org://10"}, "", LeftOut},
		"a user who is switched off":                    {Subject{UserName: "u-off"}, "", LeftOut},
		"… by the principal alone":                      {Subject{UserPrincipalName: "github_user://9"}, "", LeftOut},
		"a user who is gone":                            {Subject{UserName: "u-gone"}, "", LeftOut},
		"an account of Rancher":                         {Subject{UserName: "u-system"}, "", NoCounterpart},
		"an account of Rancher, by the principal alone": {Subject{UserPrincipalName: "system://c-9"}, "", NoCounterpart},
		"a group":               {Subject{GroupPrincipalName: "okta_group://ops"}, "okta_group://ops", ""},
		"a group of Kubernetes": {Subject{GroupName: "system:masters"}, "", LeftOut},
		"a ServiceAccount":      {Subject{ServiceAccount: "web:ci"}, "", NoCounterpart},
		"no one":                {Subject{}, "", LeftOut},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := newConversion(Objects{Users: users}, Options{})
			if got := c.principalOf(tt.subject, "x"); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if (tt.class != "") != (len(c.report.Findings) == 1) || tt.class != "" && c.report.Findings[0].Class != tt.class {
				t.Errorf("reported %+v, want %s", c.report.Findings, tt.class)
			}
		})
	}
}

func TestTheFileOfPrincipals(t *testing.T) {
	const entry = "providers: []\nprincipals:\n- {rancher: x, kind: User, name: %s}\n"
	tests := map[string]struct{ text, err string }{
		"what an export wrote":            {"providers:\n- {rancher: openldap, name: ldap, acceptSuggested: true}\nprincipals:\n- {rancher: x, kind: Group, name: 'ldap:ops', suggested: y, why: z}\n", ""},
		"an open name":                    {strings.Replace(entry, "%s", "''", 1), ""},
		"no rights":                       {strings.Replace(entry, "%s", "'-'", 1), ""},
		"nothing":                         {"", ""},
		"a group of the member itself":    {strings.Replace(entry, "%s", "'system:masters'", 1), "is not a valid name in a binding"},
		"Drover's own":                    {strings.Replace(entry, "%s", "'drover:viewer'", 1), "is not a valid name in a binding"},
		"no provider":                     {strings.Replace(entry, "%s", "alice", 1), "use provider:name"},
		"a line break":                    {strings.Replace(entry, "%s", `"github:a\nb"`, 1), "is not a valid name in a binding"},
		"a missing name":                  {strings.Replace(entry, "%s", "'github:'", 1), "is not a valid name in a binding"},
		"another kind":                    {"principals: [{rancher: x, kind: ServiceAccount, name: ''}]", "neither User nor Group"},
		"twice":                           {"principals: [{rancher: x, kind: User, name: ''}, {rancher: x, kind: User, name: 'a:b'}]", "is listed twice"},
		"a provider twice":                {"providers: [{rancher: x, name: a}, {rancher: x, name: b}]", "is listed twice"},
		"a provider that there cannot be": {"providers: [{rancher: x, name: system}]", "not a valid name of an AuthProvider"},
		"a field that it does not know":   {"principals: [{rancher: x, kind: User, called: 'a:b'}]", "unknown field"},
		"no YAML":                         {"{", "read principals"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m, err := ReadMapping([]byte(tt.text))
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("%v, want %q", err, tt.err)
			}
			if err != nil {
				return
			}
			text, err := m.YAML()
			if err != nil {
				t.Fatal(err)
			}
			if again, err := ReadMapping(text); err != nil || !slices.Equal(again.Principals, m.Principals) || !slices.Equal(again.Providers, m.Providers) {
				t.Errorf("what was written is read as %+v, %v", again, err)
			}
		})
	}
}

// A completed name is kept, even for principals that are not in this export, because the next export may be of another
// cluster.
func TestACompletedNameStays(t *testing.T) {
	in := server(t)
	given := Mapping{
		Providers: []Provider{{Rancher: "keycloakoidc", Name: "sso", AcceptSuggested: true}, {Rancher: "openldap", Name: "corp"}},
		Principals: []Principal{{Rancher: "keycloakoidc_user://6f1c2b7e-0000-4000-8000-000000000001", Kind: "User", Decided: "keycloakoidc:mallory"},
			{Rancher: "github_team://3001", Kind: "Group", Name: "github:acme/web"}, {Rancher: "other_user://1", Kind: "User", Name: "other:one"}, {Rancher: "local://u-bob", Kind: "User", Name: NoName}},
	}
	r := Convert(in, Options{Workspace: "team-a", Mapping: given})
	got := map[string]string{}
	for _, p := range r.Mapping.Principals {
		got[p.Rancher] = p.effective()
	}
	for id, want := range map[string]string{
		"github_team://3001": "github:acme/web", "other_user://1": "other:one", "local://u-bob": NoName, "openldap_group://cn=Ops,ou=groups,dc=example,dc=org": "corp:ops",
		"keycloakoidc_user://6f1c2b7e-0000-4000-8000-000000000001": "sso:carol", "github_user://1003": "",
	} {
		if got[id] != want {
			t.Errorf("%s is %q, want %q", id, got[id], want)
		}
	}
	for _, o := range r.Objects {
		if strings.Contains(o.Path, "crtb-bob") || strings.Contains(o.Path, "prtb-deploy") {
			t.Errorf("%s is exported for a user who is to have nothing", o.Path)
		}
	}
	if r.Report.Exported["ProjectRoleTemplateBinding"] != 4 { // of the team, of the organization, alice and carol
		t.Errorf("exported %v", r.Report.Exported)
	}
	again := Convert(in, Options{Workspace: "team-a", Mapping: r.Mapping})
	if !slices.Equal(again.Mapping.Principals, r.Mapping.Principals) {
		t.Errorf("the file changes from %+v to %+v", r.Mapping.Principals, again.Mapping.Principals)
	}
}

func FuzzPrincipals(f *testing.F) {
	for _, id := range []string{"github_user://1", "openldap_group://cn=ops,dc=x", `activedirectory_user://CN=a\,b`, "local://u-x", "system://x", "x_y_group://z:z", "://", "_://", "okta_group://\x1b[2J"} {
		f.Add(id, "alice")
	}
	f.Fuzz(func(t *testing.T, id, name string) {
		c := newConversion(Objects{UserAttributes: []UserAttribute{login("x", id, name, id+"="+name)}, Users: []User{user("u-x", name, id)}}, Options{})
		p := c.proposal(id, map[string]Provider{})
		for _, got := range []string{p.Decided, p.Suggested} {
			if got != "" && !validSubject(got) {
				t.Errorf("%q becomes %q, which no binding takes", id, got)
			}
		}
		if unprintable(p.Why) {
			t.Errorf("%q has the reason %q", id, p.Why)
		}
	})
}
