// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/hosts"
	"github.com/drover-dev/drover/test/testkit"
)

const attack = "plant"

// runs returns instructions with the given IDs.
func runs(ids ...string) protocol.HostInstructions {
	given := protocol.HostInstructions{}
	for _, id := range ids {
		given.Instructions = append(given.Instructions, protocol.HostInstruction{ID: id, Command: []string{"true"}})
	}
	return given
}

// taken returns a world whose Host is claimed and has instructions.
func taken(t *testing.T) (*world, v1.HostConsumerRef) {
	t.Helper()
	w, prod := newWorld(t), consumer("prod")
	if err := w.Take(t.Context(), w.host, prod); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Give(t.Context(), w.host, prod, runs("install")); err != nil {
		t.Fatal(err)
	}
	return w, prod
}

// impostor replaces the Secret with the instructions with a Secret that a user without hosts/instructions can create.
// The new Secret has the same labels, annotations and owner, and one more instruction, but not the type.
func (w *world) impostor(ctx context.Context) {
	w.t.Helper()
	fake := w.instructions()
	if fake == nil {
		w.t.Fatal("got no instructions, want some to copy")
	}
	if err := w.Env.Client.Delete(ctx, fake.DeepCopy()); err != nil {
		w.t.Fatal(err)
	}
	fake.ObjectMeta = metav1.ObjectMeta{Namespace: fake.Namespace, Name: fake.Name, Labels: fake.Labels, Annotations: fake.Annotations, OwnerReferences: fake.OwnerReferences}
	fake.Type = corev1.SecretTypeOpaque
	fake.Data[v1.HostInstructionsKey] = []byte(strings.Replace(string(fake.Data[v1.HostInstructionsKey]), `"instructions":[`, `"instructions":[{"id":"`+attack+`","command":["true"]},`, 1))
	if _, err := protocol.ParseHostInstructions(fake.Data[v1.HostInstructionsKey]); err != nil || !strings.Contains(string(fake.Data[v1.HostInstructionsKey]), attack) {
		w.t.Fatalf("the impostor's instructions are %s, %v: want them to be readable, with an instruction of their own",
			fake.Data[v1.HostInstructionsKey], err)
	}
	if err := w.Env.Client.Create(ctx, fake); err != nil {
		w.t.Fatal(err)
	}
}

// remove deletes the Secret with the instructions, whoever created it.
func (w *world) remove(ctx context.Context) {
	w.t.Helper()
	if err := w.Env.Client.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.host.Namespace, Name: "m1-host-plan"}}); err != nil {
		w.t.Fatal(err)
	}
}

// before returns a hub in which another writer acts once, before the hub's first write of the instructions.
func (w *world) before(act func(context.Context)) hosts.Hub {
	c := testkit.Competing(w.Env.Client, func(ctx context.Context, _ any) bool { act(ctx); return true })
	return hosts.Hub{Client: c, Live: w.Env.Client}
}

// wantNone fails if a Host would accept the Secret with the instructions although it contains the impostor's
// instruction.
func (w *world) wantNone() {
	w.t.Helper()
	given := w.instructions()
	if given != nil && given.Type == v1.SecretTypeHostInstructions &&
		strings.Contains(string(given.Data[v1.HostInstructionsKey]), attack) {
		w.t.Errorf("the instructions are %s, want nothing of the impostor's", given.Data[v1.HostInstructionsKey])
	}
}

func TestASecretWithoutInstructionsIsNeitherReadNorWrittenNorDeleted(t *testing.T) {
	t.Parallel()
	w, prod := taken(t)
	w.impostor(t.Context())
	fake := w.instructions()
	if given, version, err := w.Instructions(t.Context(), w.host); !errors.Is(err, hosts.ErrForeignInstructions) || given != nil {
		t.Errorf("read: %v, %s, %v, want ErrForeignInstructions", given, version, err)
	}
	read, err := w.Given(t.Context(), w.host)
	if note, version := read.Note(); err != nil || note != "" || version != "" {
		t.Errorf("the note is %q of version %q, %v, want none", note, version, err)
	}
	for what, write := range map[string]func() error{
		"set": func() error { _, err := w.Give(t.Context(), w.host, prod, runs("other")); return err },
		"replace": func() error {
			_, err := w.ReplaceInstructions(t.Context(), w.host, prod, runs("other"), string(fake.UID)+"."+fake.ResourceVersion)
			return err
		},
		"release": func() error { _, err := w.Release(t.Context(), w.look(clean), prod); return err },
	} {
		if err := write(); !errors.Is(err, hosts.ErrForeignInstructions) {
			t.Errorf("%s: %v, want ErrForeignInstructions", what, err)
		}
	}
	if now := w.instructions(); now == nil || now.UID != fake.UID || now.ResourceVersion != fake.ResourceVersion {
		t.Errorf("the Secret is %+v, want it as it was", now)
	}
}

// Each mark is necessary for a Secret to count as instructions from Drover.
func TestInstructionsOfAnotherHostOrOwnerAreNotDrovers(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*corev1.Secret){
		"another host":    func(s *corev1.Secret) { s.Labels[v1.LabelHost] = "m2" },
		"no kind":         func(s *corev1.Secret) { delete(s.Labels, v1.LabelSecretKind) },
		"a former host":   func(s *corev1.Secret) { s.OwnerReferences[0].UID = types.UID("former") },
		"no owner at all": func(s *corev1.Secret) { s.OwnerReferences = nil },
		"made by a user":  func(s *corev1.Secret) { s.Annotations = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, prod := taken(t)
			given := w.instructions()
			change(given)
			if err := w.Env.Client.Update(t.Context(), given); err != nil {
				t.Fatal(err)
			}
			if _, _, err := w.Instructions(t.Context(), w.host); !errors.Is(err, hosts.ErrForeignInstructions) {
				t.Errorf("read: %v, want ErrForeignInstructions", err)
			}
			if _, err := w.Give(t.Context(), w.host, prod, runs("other")); !errors.Is(err, hosts.ErrForeignInstructions) {
				t.Errorf("give: %v, want ErrForeignInstructions", err)
			}
		})
	}
}

func TestInstructionsThatAnotherWriterReplacesAreAConflict(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		competitor func(*world, context.Context)
		write      func(hosts.Hub, *world, v1.HostConsumerRef, string) error
	}{
		"deleted before instructions are set":                               {(*world).remove, set},
		"deleted before instructions are replaced":                          {(*world).remove, replace},
		"replaced by a Secret of the name before instructions are set":      {(*world).impostor, set},
		"replaced by a Secret of the name before instructions are replaced": {(*world).impostor, replace},
		"replaced by a Secret of the name before it is deleted":             {(*world).impostor, release},
		"changed before instructions are set":                               {(*world).change, set},
		"changed before instructions are replaced":                          {(*world).change, replace},
		"changed before it is deleted":                                      {(*world).change, release},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, prod := taken(t)
			_, version, err := w.Instructions(t.Context(), w.host)
			if err != nil {
				t.Fatal(err)
			}
			var left *corev1.Secret
			hub := w.before(func(ctx context.Context) { tc.competitor(w, ctx); left = w.instructions() })
			if err := tc.write(hub, w, prod, version); !apierrors.IsConflict(err) {
				t.Errorf("got the error %v, want a conflict", err)
			}
			now := w.instructions()
			if (now == nil) != (left == nil) || now != nil && now.ResourceVersion != left.ResourceVersion {
				t.Errorf("the Secret is %+v, want it as the other writer left it: %+v", now, left)
			}
			w.wantNone()
		})
	}
}

// change changes the instructions in the same way as a user with hosts/instructions.
func (w *world) change(ctx context.Context) {
	w.t.Helper()
	given := w.instructions()
	given.Labels["changed"] = "yes"
	if err := w.Env.Client.Update(ctx, given); err != nil {
		w.t.Fatal(err)
	}
}

func set(hub hosts.Hub, w *world, by v1.HostConsumerRef, _ string) error {
	_, err := hub.Give(w.t.Context(), w.host, by, runs("install", "more"))
	return err
}

func replace(hub hosts.Hub, w *world, by v1.HostConsumerRef, version string) error {
	_, err := hub.ReplaceInstructions(w.t.Context(), w.host, by, runs("install", "more"), version)
	return err
}

func release(hub hosts.Hub, w *world, by v1.HostConsumerRef, _ string) error {
	_, err := hub.Release(w.t.Context(), w.look(clean), by)
	return err
}

// ReplaceInstructions writes only if the instructions are still the ones that Instructions has read. Otherwise it would
// overwrite newer instructions with a change to older ones.
func TestInstructionsAreReplacedOnlyInTheVersionThatWasRead(t *testing.T) {
	t.Parallel()
	w, prod := taken(t)
	_, version, err := w.Instructions(t.Context(), w.host)
	if err != nil {
		t.Fatal(err)
	}
	w.change(t.Context())
	if _, err := w.ReplaceInstructions(t.Context(), w.host, prod, runs("install", "more"), version); !apierrors.IsConflict(err) {
		t.Errorf("after a change: %v, want a conflict", err)
	}
	_, version, err = w.Instructions(t.Context(), w.host)
	if err != nil {
		t.Fatal(err)
	}
	if set, err := w.ReplaceInstructions(t.Context(), w.host, prod, runs("install", "more"), version); err != nil || !set {
		t.Errorf("of the version that was read: %t, %v, want it to be replaced", set, err)
	}
}

// A cache contains no Secret without Drover's labels, so the first Secret is created and not applied.
func TestFirstInstructionsDoNotReplaceASecretInTheirPlace(t *testing.T) {
	t.Parallel()
	w, prod := newWorld(t), consumer("prod")
	if err := w.Take(t.Context(), w.host, prod); err != nil {
		t.Fatal(err)
	}
	made := func(ctx context.Context) {
		fake := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.host.Namespace, Name: "m1-host-plan"}, Type: v1.SecretTypeHostInstructions, StringData: map[string]string{"x": "y"}}
		if err := w.Env.Client.Create(ctx, fake); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.before(made).Give(t.Context(), w.host, prod, runs("install")); !apierrors.IsAlreadyExists(err) {
		t.Errorf("in the same moment: %v, want AlreadyExists", err)
	}
	if _, err := w.Give(t.Context(), w.host, prod, runs("install")); !errors.Is(err, hosts.ErrForeignInstructions) {
		t.Errorf("the next time: %v, want ErrForeignInstructions", err)
	}
	if got := w.instructions(); string(got.Data["x"]) != "y" || len(got.Data) != 1 {
		t.Errorf("the Secret has the keys %v, want it as it was", got.Data)
	}
}
