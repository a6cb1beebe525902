// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

// forge creates a ConfigMap with the Baseline's label, as a user who pretends to be the Baseline's field manager.
func (m *member) forge(t *testing.T, name string) {
	t.Helper()
	o := corev1ac.ConfigMap(name, m.namespace).WithLabels(map[string]string{v1.LabelBaseline: m.name}).
		WithData(map[string]string{"c": "d"})
	if err := m.Client.Apply(t.Context(), o, client.FieldOwner(baseline.User(m.name))); err != nil {
		t.Fatal(err)
	}
}

// awaitRepair changes an object and waits until it is repaired, and the result satisfies check. The Baseline has then
// seen all earlier changes.
func (m *member) awaitRepair(t *testing.T, c *set.BaselineContent, check func(Result) error) {
	t.Helper()
	m.change(t, "helm")
	m.await(t, c, func(r Result) error {
		if got := m.configMap(t, "first").Data["a"]; got != "b" {
			return fmt.Errorf("got the value %q, want it repaired", got)
		}
		return check(r)
	})
}

func TestAForgedObjectIsNotDeleted(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	c := m.content(t, first)
	m.await(t, c, healthy)
	m.forge(t, "forged")
	m.awaitRepair(t, c, healthy)
	m.await(t, c, healthy)
	if m.configMap(t, "forged") == nil {
		t.Error("the agent deleted an object that a user had made look like the Baseline's, want it to stay")
	}
}

func TestAnObjectForgedDuringTheFirstPassesIsNotDeleted(t *testing.T) {
	t.Parallel()
	for name, blocked := range map[string]bool{"before the first pass": false, "while a conflict blocks it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMember(t, []string{""}, "configmaps")
			c := m.content(t, first, second)
			if blocked {
				other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: "second"}}
				if err := m.Client.Create(t.Context(), other); err != nil {
					t.Fatal(err)
				}
				conflict := hasPhase(protocol.SetConflict, "already exists")
				m.await(t, c, conflict)
				m.forge(t, "forged")
				m.awaitRepair(t, c, conflict)
				if err := m.Client.Delete(t.Context(), other); err != nil {
					t.Fatal(err)
				}
			} else {
				m.forge(t, "forged")
			}
			m.await(t, c, healthy)
			m.remove(t)
			if m.configMap(t, "forged") == nil || m.configMap(t, "first") != nil {
				t.Error("got the first object or not the forged one, want only the Baseline's own objects deleted")
			}
		})
	}
}

func TestObjectsOfOthersWithTheLabelAreNotStored(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	c := m.content(t, first)
	m.await(t, c, healthy)
	for i := range 5 {
		m.forge(t, fmt.Sprint("forged-", i))
	}
	m.awaitRepair(t, c, healthy)
	if got := m.keeper.of(m.id).watched(kind{"", "ConfigMap"}).objects.Values(); len(got) != 1 {
		t.Errorf("got %d stored objects, want only the Baseline's: any user can set the label", len(got))
	}
}

func TestALostInventoryIsWrittenAgain(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"by the same agent": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMember(t, []string{""}, "configmaps")
			m.await(t, m.content(t, first, second), healthy)
			if err := m.secrets.Delete(t.Context(), secretName(m.id)); err != nil {
				t.Fatal(err)
			}
			if restart {
				m.lead(t)
			}
			third := strings.Replace(second, "name: second", "name: third", 1)
			m.await(t, m.content(t, first, third), healthy)
			if got := m.inventory(t); len(got) != 2 || got[0].Name != "first" || got[0].UID == "" {
				t.Errorf("got the inventory %+v, want the first object with its UID, and the third one", got)
			}
			if there := m.configMap(t, "second") != nil; there != restart {
				t.Errorf("the second object exists: %t, want %t: only an agent that remembers it may delete it", there, restart)
			}
		})
	}
}

// editInventory replaces the stored inventory.
func (m *member) editInventory(t *testing.T, r record) {
	t.Helper()
	stored, err := m.secrets.Get(t.Context(), secretName(m.id))
	if err == nil {
		stored.Data[keyInventory], err = json.Marshal(r)
	}
	if err == nil {
		_, err = m.secrets.Update(t.Context(), stored)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestAnInventoryWithAnotherNameIsRefused(t *testing.T) {
	t.Parallel()
	m, victim := newMember(t, []string{""}, "configmaps"), newMember(t, []string{""}, "configmaps")
	m.await(t, m.content(t, first), healthy)
	victim.await(t, victim.content(t, first), healthy)
	o := victim.configMap(t, "first")
	m.editInventory(t, record{Name: victim.name, Entries: []entry{
		{APIVersion: "v1", Kind: "ConfigMap", Namespace: o.Namespace, Name: o.Name, UID: o.UID}}})
	m.lead(t)
	r := m.keeper.Remove(t.Context(), m.id)
	if err := hasPhase(protocol.SetFailed, "is not an inventory")(r); err != nil {
		t.Error(err)
	}
	if victim.configMap(t, "first") == nil {
		t.Error("the agent deleted an object as the user of another Baseline, want it to stay")
	}
}

func TestAnEditedInventoryChoosesNoPath(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	m.await(t, m.content(t, first), healthy)
	m.editInventory(t, record{Name: m.name, Entries: []entry{
		{APIVersion: "../api", Kind: "ConfigMap", Namespace: m.namespace, Name: "..", UID: "1"}}})
	m.lead(t)
	m.line.paths(true)
	m.remove(t)
	for _, path := range m.line.paths(false) {
		if strings.Contains(path, "..") || !strings.Contains(path, "secrets") {
			t.Errorf("the agent requested %s, want only requests for the inventory", path)
		}
	}
}

func TestAnApiVersionChoosesNoPath(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps")
	c := m.content(t, first)
	c.Objects = append(c.Objects, json.RawMessage(`{"apiVersion":"../metrics",`+
		`"kind":"ConfigMap","metadata":{"name":"a","namespace":"`+m.namespace+`"}}`))
	m.await(t, c, hasPhase(protocol.SetFailed, "a character that is not allowed"))
	for _, path := range m.line.paths(false) {
		if path == "/metrics" {
			t.Errorf("the agent requested %s with its own rights, want no request that the Baseline's author chooses", path)
		}
	}
}

func TestAValueOfTheWrongTypeIsNotReported(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{""}, "configmaps", "secrets")
	for _, kind := range []string{"ConfigMap", "Secret"} {
		c := m.content(t, "apiVersion: v1\nkind: "+kind+"\nmetadata: {name: wrong, namespace: NS}\n"+
			"data: {password: 31415926}")
		r := m.await(t, c, hasPhase(protocol.SetFailed, ".data.password"))
		if strings.Contains(fmt.Sprint(r), "31415926") {
			t.Errorf("%s: got %+v, want no value of a field: everyone who can read the Baseline can read it", kind, r)
		}
	}
}

// define creates the definition of gadgets as another user.
func (m *member) define(t *testing.T, scope string) *unstructured.Unstructured {
	t.Helper()
	text, _ := m.definition()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(strings.Replace(text, "Namespaced", scope, 1)), &o.Object); err != nil {
		t.Fatal(err)
	}
	if err := m.Client.Create(t.Context(), o.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Client.Delete(context.WithoutCancel(t.Context()), o) })
	return o
}

// undefine deletes a definition and waits until it is gone.
func (m *member) undefine(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	if err := m.Client.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		err := m.Client.Get(ctx, client.ObjectKeyFromObject(o), o.DeepCopy())
		if err == nil {
			return errors.New("the definition exists, want it gone")
		}
		return client.IgnoreNotFound(err)
	})
}

func TestADefinitionThatIsReplacedIsNoticed(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{"*"}, "gadgets")
	definition := m.define(t, "Namespaced")
	_, object := m.definition()
	m.await(t, m.content(t, object), healthy)
	m.undefine(t, definition)
	m.define(t, "Cluster")
	m.await(t, m.content(t, strings.Replace(object, ", namespace: NS", "", 1)), healthy)
}

func TestAnObjectIsNotHealthyWithoutItsDefinition(t *testing.T) {
	t.Parallel()
	m := newMember(t, []string{"*"}, "gadgets")
	definition := m.define(t, "Namespaced")
	_, object := m.definition()
	c := m.content(t, object)
	m.await(t, c, healthy)
	m.line.cut(true) // the agent misses the events
	m.undefine(t, definition)
	m.line.cut(false)
	m.await(t, c, func(r Result) error {
		if len(r.Problems) != 1 || r.State.Healthy != 0 {
			return fmt.Errorf("got %+v, want a problem: the definition and the object are gone", r)
		}
		return nil
	})
}
