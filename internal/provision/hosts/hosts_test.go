// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/hosts"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func consumer(name string) v1.HostConsumerRef {
	return v1.HostConsumerRef{APIVersion: v1.GroupVersion.String(), Kind: "Cluster", Name: name, UID: "a"}
}

// clean sets the status of a host without instructions.
func clean(h *v1.Host) {
	h.Status.State = v1.HostAvailable
	meta.SetStatusCondition(&h.Status.Conditions, metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1.ReasonHostAvailable, ObservedGeneration: h.Generation})
}

func TestHostIsFreeOnlyIfItIsKnownToBeClean(t *testing.T) {
	t.Parallel()
	ready := func(h *v1.Host) *metav1.Condition { return &h.Status.Conditions[0] }
	for want, change := range map[string]func(*v1.Host){
		"":                                      func(*v1.Host) {},
		"it is being deleted":                   func(h *v1.Host) { h.DeletionTimestamp = &metav1.Time{} },
		"Cluster prod has claimed it":           func(h *v1.Host) { h.Spec.ConsumerRef = new(consumer("prod")) },
		"its state is Cleaning":                 func(h *v1.Host) { h.Status.State = v1.HostCleaning },
		"its state is not known yet":            func(h *v1.Host) { h.Status.State = "" },
		"its agent is not connected":            func(h *v1.Host) { ready(h).Status = metav1.ConditionFalse },
		"its status is not of its present spec": func(h *v1.Host) { h.Generation++ },
		"the hub was restored": func(h *v1.Host) {
			meta.SetStatusCondition(&h.Status.Conditions, metav1.Condition{Type: v1.ConditionRestoreConfirmed, Status: metav1.ConditionFalse, Reason: v1.ReasonHubRestored})
		},
	} {
		host := v1.Host{ObjectMeta: metav1.ObjectMeta{Name: "m1", Generation: 1, Labels: map[string]string{"size": "large"}}}
		clean(&host)
		change(&host)
		if host.DeletionTimestamp != nil {
			host.DeletionTimestamp.Time = metav1.Now().Time
		}
		if got := hosts.NotFree(&host); got != want && (want == "" || !strings.HasPrefix(got, want)) {
			t.Errorf("got %q, want %q", got, want)
		}
		for selector, selected := range map[string]bool{"size=large": want == "", "size=small": false} {
			s, err := labels.Parse(selector)
			if err != nil {
				t.Fatal(err)
			}
			if got := hosts.Free([]v1.Host{host}, s); (len(got) == 1) != selected {
				t.Errorf("%q: with %s %d hosts are free", want, selector, len(got))
			}
		}
	}
}

// world is a workspace with one clean Host.
type world struct {
	*testkit.Env
	hosts.Hub
	t    *testing.T
	host *v1.Host
}

func newWorld(t *testing.T) *world {
	t.Helper()
	env := testkit.Shared(t)
	w := &world{env, hosts.Hub{Client: env.Client, Live: env.Client}, t, &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: env.Workspace(t), Name: "m1"}}}
	w.Apply(t, w.host)
	w.look(clean)
	return w
}

// look reads the Host, and writes its status as the Host controller would.
func (w *world) look(status func(*v1.Host)) *v1.Host {
	w.t.Helper()
	if err := w.Env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(w.host), w.host); err != nil {
		w.t.Fatal(err)
	}
	status(w.host)
	if err := w.Env.Client.Status().Update(w.t.Context(), w.host); err != nil {
		w.t.Fatal(err)
	}
	return w.host
}

// instructions reads the Secret with the Host's instructions. It returns nil if there is none.
func (w *world) instructions() *corev1.Secret {
	w.t.Helper()
	secret := &corev1.Secret{}
	err := w.Env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.host.Namespace, Name: "m1-host-plan"}, secret)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		w.t.Fatal(err)
	}
	return secret
}

func TestOnlyOneOfTwoConsumersTakesAHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stale := w.host.DeepCopy()
	if err := w.Take(t.Context(), w.host, consumer("prod")); err != nil {
		t.Fatal(err)
	}
	if err := w.Take(t.Context(), w.host, consumer("prod")); err != nil {
		t.Errorf("take it again: got %v, want no error", err)
	}
	if err := w.Take(t.Context(), stale, consumer("test")); !apierrors.IsConflict(err) {
		t.Errorf("take it with a stale cache: got %v, want a conflict", err)
	}
	if err := w.Take(t.Context(), w.look(clean), consumer("test")); !errors.Is(err, hosts.ErrNotFree) || !strings.Contains(err.Error(), "Cluster prod has claimed it") {
		t.Errorf("take it for another: got %v, want ErrNotFree", err)
	}
	other := w.host.DeepCopy()
	other.Spec.ConsumerRef.Name = "test"
	if err := w.Env.Client.Update(t.Context(), other); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "the host is taken") {
		t.Errorf("change the consumerRef by hand: got %v, want a refusal", err)
	}
	namesake := consumer("prod")
	namesake.UID = "another"
	if _, err := w.Give(t.Context(), w.host, namesake, protocol.HostInstructions{}); err == nil || w.instructions() != nil {
		t.Errorf("an object of the same name that did not take the host gave it instructions: %v", err)
	}
	if done, err := w.Release(t.Context(), w.host, namesake); err != nil || !done || w.look(clean).Spec.ConsumerRef == nil {
		t.Errorf("an object of the same name that did not take the host gave it back: %v", err)
	}
}

func TestAHostIsGivenBackWhenItsInstructionsAreGoneAndItsMachineIsClean(t *testing.T) {
	t.Parallel()
	w, prod := newWorld(t), consumer("prod")
	if err := w.Take(t.Context(), w.host, prod); err != nil {
		t.Fatal(err)
	}
	given := protocol.HostInstructions{Instructions: []protocol.HostInstruction{{ID: "install", Command: []string{"true"}}}}
	for i, want := range []bool{true, false} {
		if set, err := w.Give(t.Context(), w.host, prod, given); err != nil || set != want {
			t.Errorf("attempt %d: %t, %v, want %t", i, set, err, want)
		}
	}
	var got protocol.HostInstructions
	secret := w.instructions()
	if err := json.Unmarshal(secret.Data[v1.HostInstructionsKey], &got); err != nil || got.Owner != "Cluster/prod" || len(got.Instructions) != 1 {
		t.Errorf("the instructions are %+v, %v", got, err)
	}
	if secret.Type != v1.SecretTypeHostInstructions || secret.Labels[v1.LabelHost] != "m1" || secret.Labels[v1.LabelSecretKind] != v1.SecretKindHostInstructions || len(secret.OwnerReferences) != 1 || secret.OwnerReferences[0].UID != w.host.UID {
		t.Errorf("the Secret is %+v", secret.ObjectMeta)
	}
	for _, step := range []struct {
		what   string
		status func(*v1.Host)
		done   bool
	}{
		{"the instructions are taken away", clean, false}, // the status is from before the instructions
		{"the machine is being cleaned", func(h *v1.Host) { clean(h); h.Status.State = v1.HostCleaning }, false},
		{"the agent is away", func(h *v1.Host) { clean(h); h.Status.Conditions[0].Status = metav1.ConditionFalse }, false},
		{"the machine is clean", clean, true},
		{"it is given back already", clean, true},
	} {
		done, err := w.Release(t.Context(), w.look(step.status), prod)
		if err != nil || done != step.done || w.instructions() != nil {
			t.Errorf("%s: got done %t, %v, want done %t", step.what, done, err, step.done)
		}
		if taken := w.look(step.status).Spec.ConsumerRef != nil; taken == done {
			t.Errorf("%s: the host is taken: %t", step.what, taken)
		}
	}
}

// In a hub whose objects were restored, the consumer has another UID.
func TestInstructionsOfAFormerConsumerAreKept(t *testing.T) {
	t.Parallel()
	w, former := newWorld(t), consumer("prod")
	if err := w.Take(t.Context(), w.host, former); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Give(t.Context(), w.host, former, protocol.HostInstructions{Instructions: []protocol.HostInstruction{{ID: "install", Command: []string{"true"}}}}); err != nil {
		t.Fatal(err)
	}
	done, err := w.ReleaseFormer(t.Context(), w.look(clean))
	if !errors.Is(err, hosts.ErrFormerInstructions) || done || w.instructions() == nil {
		t.Errorf("done %t, %v: want the instructions to be there, and an error that says so", done, err)
	}
	if err := w.Env.Client.Delete(t.Context(), w.instructions()); err != nil {
		t.Fatal(err)
	}
	if done, err := w.ReleaseFormer(t.Context(), w.look(clean)); err != nil || !done || w.look(clean).Spec.ConsumerRef != nil {
		t.Errorf("done %t, %v: want the host to be given back once a person has deleted its instructions", done, err)
	}
}

func TestDeletedHostStaysUntilItIsReleased(t *testing.T) {
	t.Parallel()
	w, prod := newWorld(t), consumer("prod")
	w.Finalizer = "provision.cluster.drover.dev/node"
	if err := w.Take(t.Context(), w.host, prod); err != nil {
		t.Fatal(err)
	}
	if err := w.Env.Client.Delete(t.Context(), w.host); err != nil {
		t.Fatal(err)
	}
	host := w.look(clean)
	if !slices.Contains(host.Finalizers, w.Finalizer) {
		t.Fatalf("got the finalizers %v, want one", host.Finalizers)
	}
	if done, err := w.Release(t.Context(), host, prod); err != nil || !done {
		t.Errorf("release: got %t, %v, want true", done, err)
	}
	if err := w.Env.Client.Get(t.Context(), client.ObjectKeyFromObject(host), host); !apierrors.IsNotFound(err) {
		t.Errorf("it is there still: %v, finalizers %v", err, host.Finalizers)
	}
}

// The status may come from a backup: another object may have claimed the host since.
func TestNoHostIsTakenBeforeItsAgentHasReported(t *testing.T) {
	t.Parallel()
	w, reported := newWorld(t), false
	w.NotCurrent = func(_ context.Context, host *v1.Host) (string, error) {
		if host.Name == w.host.Name && reported {
			return "", nil
		}
		return "its agent has not reported yet to the manager that leads now", nil
	}
	if err := w.Take(t.Context(), w.host, consumer("prod")); !errors.Is(err, hosts.ErrNotFree) || !strings.Contains(err.Error(), "its agent has not reported") {
		t.Errorf("take: %v, want ErrNotFree", err)
	}
	reported = true
	if err := w.Take(t.Context(), w.host, consumer("prod")); err != nil {
		t.Error(err)
	}
}

func TestUsersInstructionsAreNeitherReplacedNorRemoved(t *testing.T) {
	t.Parallel()
	w, prod := newWorld(t), consumer("prod")
	secret := &corev1.Secret{Type: v1.SecretTypeHostInstructions}
	secret.Namespace, secret.Name = w.host.Namespace, "m1-host-plan"
	if err := w.Env.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if err := w.Take(t.Context(), w.host, prod); !errors.Is(err, hosts.ErrNotFree) {
		t.Errorf("take: %v, want ErrNotFree", err)
	}
	if err := w.Env.Client.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if err := w.Take(t.Context(), w.host, prod); err != nil {
		t.Fatal(err)
	}
	secret.ResourceVersion = ""
	if err := w.Env.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Give(t.Context(), w.host, prod, protocol.HostInstructions{}); !errors.Is(err, hosts.ErrForeignInstructions) {
		t.Errorf("give: %v, want ErrForeignInstructions", err)
	}
	if _, err := w.Release(t.Context(), w.host, prod); !errors.Is(err, hosts.ErrForeignInstructions) {
		t.Errorf("give back: %v, want ErrForeignInstructions", err)
	}
	if got := w.instructions(); got == nil || len(got.Data) > 0 {
		t.Errorf("the Secret is %+v", got)
	}
}
