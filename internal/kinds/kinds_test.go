// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/set"
)

func TestRegistryHasEveryKindOfTheAPI(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	found := map[string]Kind{}
	for _, kind := range All() {
		found[kind.Name] = kind
	}
	known := scheme.KnownTypes(v1.GroupVersion)
	for list := range known {
		name, is := strings.CutSuffix(list, "List")
		if !is || known[name] == nil {
			continue
		}
		kind, registered := found[name]
		delete(found, name)
		if !registered || reflect.TypeOf(kind.Object).Elem() != known[name] || reflect.TypeOf(kind.List).Elem() != known[list] {
			t.Errorf("%s is registered as %T and %T, want *v1.%s and *v1.%s", name, kind.Object, kind.List, name, list)
		}
		if want := strings.ToLower(name) + "s"; kind.Resource != want {
			t.Errorf("the resource of %s is %q, want %q", name, kind.Resource, want)
		}
	}
	if len(found) > 0 {
		t.Errorf("the registry has %v, want only kinds of the API", found)
	}
}

func TestOfFindsKindsByTheirTypes(t *testing.T) {
	if kind, known := Of(&v1.Plan{}); !known || kind.Resource != "plans" {
		t.Errorf("got the kind %+v, %v for a Plan, want plans", kind, known)
	}
	if kind, known := Of(&v1.PlanList{}); known {
		t.Errorf("got the kind %+v for a list, want none", kind)
	}
}

func TestOnlySetsThatUsersWithdrawCountAsWithdrawn(t *testing.T) {
	rules := Rules()
	for kind, want := range map[string][3]bool{
		set.Guards: {true, false, true}, set.Direct: {true, true, false}, set.Role: {true, false, false}, set.Plan: {},
	} {
		if r := rules[kind]; [3]bool{r.CountsAsWithdrawn, r.RevokedAtOnce, r.OfMember} != want {
			t.Errorf("got the rule %[2]v for sets of the kind %[1]s, want %[3]v", kind, r, want)
		}
	}
}
