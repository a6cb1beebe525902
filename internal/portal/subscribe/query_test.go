// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/identity/refusal"
)

func TestQueryIsParsedOrRefused(t *testing.T) {
	var many []string
	for i := range mostNamed + 1 {
		many = append(many, fmt.Sprint("namespace=w", i))
	}
	for _, tt := range []struct{ name, query, kinds, workspaces, refusal string }{
		{
			"an empty query means everything", "",
			"clusters projects clusterroletemplatebindings projectroletemplatebindings plans baselines hosts roletemplates " +
				"authproviders users",
			"", "",
		},
		{"kinds are sorted and unique", "kind=plans&kind=clusters&kind=plans", "clusters plans", "", ""},
		{"workspaces are sorted and unique", "namespace=b&namespace=a&namespace=b&kind=plans", "plans", "a b", ""},
		{"Secrets are not a kind", "kind=secrets", "", "", "you cannot subscribe to"},
		{"a kind must be the name of a resource", "kind=Cluster", "", "", "you cannot subscribe to"},
		{"an unknown parameter is refused", "kinds=clusters", "", "", `unknown parameter "kinds"`},
		{"a workspace must be the name of a namespace", "namespace=../a", "", "", "not the name of a namespace"},
		{"the number of workspaces is limited", strings.Join(many, "&"), "", "", "more than 100"},
		{"an invalid resume token is ignored", "resume=%00&kind=plans", "plans", "", ""},
	} {
		values, err := url.ParseQuery(tt.query)
		if err != nil {
			t.Fatal(err)
		}
		q, err := queryOf(values)
		if tt.refusal != "" {
			if err == nil || !strings.Contains(err.Error(), tt.refusal) || refusal.Of(err).Status().Code != 400 {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		if got := strings.Join(q.kinds, " "); err != nil || got != tt.kinds ||
			strings.Join(q.workspaces, " ") != tt.workspaces || q.resume.Versions != nil {
			t.Errorf("%s: %v, %v, %v", tt.name, got, q.workspaces, err)
		}
	}
}

func TestResumeTokenRoundTrip(t *testing.T) {
	r := resume{Versions: map[string]uint64{"clusters": 1 << 60, "plans": 0}, Rights: []byte{1, 2, 255}}
	if got := parse(r.String()); !reflect.DeepEqual(got, r) {
		t.Errorf("got %+v, want %+v", got, r)
	}
	q := query{kinds: []string{"clusters"}}
	base := digest("alice", q, map[string][]string{"clusters": {"a", "b"}})
	for name, other := range map[string][]byte{
		"another user":      digest("bob", q, map[string][]string{"clusters": {"a", "b"}}),
		"another workspace": digest("alice", q, map[string][]string{"clusters": {"a", "c"}}),
		"one workspace with the joined name of two": digest("alice", q, map[string][]string{"clusters": {"ab"}}),
		"another kind": digest("alice", query{kinds: []string{"plans"}},
			map[string][]string{"clusters": {"a", "b"}}),
		"another query": digest("alice", query{kinds: q.kinds, workspaces: []string{"a"}},
			map[string][]string{"clusters": {"a", "b"}}),
		"a user with the name of the kind": digest("alicekinds", query{}, map[string][]string{"clusters": {"a", "b"}}),
	} {
		if slices.Equal(base, other) {
			t.Errorf("%s has the same digest, want another", name)
		}
	}
}

// FuzzResume decodes tokens that clients may send. A token must not be mistaken for a later position.
func FuzzResume(f *testing.F) {
	f.Add("")
	f.Add(resume{Versions: map[string]uint64{"clusters": 12}, Rights: []byte{1}}.String())
	f.Add("eyJ2Ijp7ImNsdXN0ZXJzIjotMX19")
	f.Add(strings.Repeat("A", mostResume+1))
	f.Fuzz(func(t *testing.T, token string) {
		r := parse(token)
		if len(r.Versions) > mostResume || len(r.Rights) > mostResume {
			t.Errorf("a token of %d bytes has %d versions, want fewer", len(token), len(r.Versions))
		}
		if again := parse(r.String()); len(r.String()) <= mostResume && !reflect.DeepEqual(again.Versions, r.Versions) &&
			len(r.Versions) > 0 {
			t.Errorf("%+v was decoded as %+v, want the same", r, again)
		}
	})
}
