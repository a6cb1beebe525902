// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin"
	"github.com/drover-dev/drover/internal/signin/keys"
	"github.com/drover-dev/drover/internal/signin/password"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func TestDecide(t *testing.T) {
	secret := func(kind, hash string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1.LabelSecretKind: kind}}, Data: map[string][]byte{v1.UserSecretKey: []byte(hash), v1.UserSecretUID: []byte("u-1")}}
	}
	for name, tt := range map[string]struct {
		disabled bool
		secret   *corev1.Secret
		reason   string
		ready    bool
	}{
		"a password":                    {false, secret("user", password.Nothing()), v1.ReasonPasswordSet, true},
		"none":                          {false, nil, v1.ReasonPasswordMissing, false},
		"a password in plain text":      {false, secret("user", "hunter2"), v1.ReasonPasswordInvalid, false},
		"a Secret for something else":   {false, secret("agent", password.Nothing()), v1.ReasonPasswordInvalid, false},
		"that of another User":          {false, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1.LabelSecretKind: "user"}}, Data: map[string][]byte{v1.UserSecretKey: []byte(password.Nothing())}}, v1.ReasonPasswordInvalid, false},
		"disabled":                      {true, secret("user", password.Nothing()), v1.ReasonDisabled, true},
		"disabled and without password": {true, nil, v1.ReasonDisabled, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(&v1.User{ObjectMeta: metav1.ObjectMeta{Name: "alice", UID: "u-1"}, Spec: v1.UserSpec{Disabled: tt.disabled}}, tt.secret)
			stalled := tt.reason == v1.ReasonPasswordInvalid
			if got.Reason != tt.reason || got.Ready != tt.ready || got.Stalled != stalled || got.Message == "" {
				t.Errorf("the readiness is %+v, want %s, ready %t, stalled %t", got, tt.reason, tt.ready, stalled)
			}
		})
	}
}

// A provider can send any text, and it appears on the terminal of anyone who lists providers.
func TestMessageOfAProviderIsPrintableAndBounded(t *testing.T) {
	said := errors.New("502: \x1b]0;forged\x07\nReady=True \u202e" + strings.Repeat("ä", 2000))
	var p v1.AuthProvider
	ready(&p, said).Write(1, &p.Status.ObservedGeneration, &p.Status.Conditions)
	got := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady).Message
	if len(got) > 1536 || !utf8.ValidString(got) || strings.ContainsFunc(got, func(c rune) bool { return !unicode.IsPrint(c) }) || !strings.HasPrefix(got, "502: .]0;forged..Ready=True .") {
		t.Errorf("the message has %d bytes: %q", len(got), got)
	}
}

func TestKeysAreMadeOnceAndRotated(t *testing.T) {
	env := testkit.Shared(t)
	now := start
	k := &Keys{Client: env.Client, Secret: types.NamespacedName{Namespace: env.Workspace(t), Name: signin.KeysSecret}, Now: func() time.Time { return now }}
	read := func() (set keys.Set) {
		t.Helper()
		for range 3 { // each write wakes the controller
			if _, err := k.Reconcile(t.Context(), ctrl.Request{}); err != nil {
				t.Fatal(err)
			}
		}
		secret := &corev1.Secret{}
		if err := env.Client.Get(t.Context(), k.Secret, secret); err != nil {
			t.Fatal(err)
		}
		set, err := keys.Decode(secret.Data[signin.KeyOfKeys])
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	first := read()
	if again := read(); len(first) != 1 || len(again) != 1 || again[0].ID != first[0].ID {
		t.Fatalf("the keys are %v, then %v; want one that stays", first, again)
	}
	now = start.Add(keys.Lifetime)
	both := read()
	if active, err := both.Active(now); len(both) != 2 || err != nil || active.ID != first[0].ID {
		t.Fatalf("after its lifetime there are %d keys, of which %s signs (%v); want the first to sign for another hour", len(both), active.ID, err)
	}
	now = now.Add(keys.Lead + keys.Overlap)
	if last := read(); len(last) != 1 || last[0].ID != both[1].ID {
		t.Errorf("once no token of the first is left, the keys are %v", last)
	}
}

func TestSessionIsDeletedWhenItHasEnded(t *testing.T) {
	env := testkit.Shared(t)
	namespace, now := env.Workspace(t), start
	s := &Sessions{Client: env.Client, Namespace: namespace, Now: func() time.Time { return now }}
	created := func(name, kind, ends string) client.ObjectKey {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{v1.LabelSecretKind: kind}}, Data: map[string][]byte{"ends": []byte(ends)}}
		env.Apply(t, secret)
		return client.ObjectKeyFromObject(secret)
	}
	ends := start.Add(10 * time.Minute).Format(time.RFC3339)
	session, other, broken := created("drover-session-1", "session", ends), created("drover-user-alice", "user", ends), created("drover-session-2", "session", "never")
	run := func(name client.ObjectKey) (left time.Duration, gone bool) {
		t.Helper()
		result, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: name})
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter, apierrors.IsNotFound(env.Client.Get(t.Context(), name, &corev1.Secret{}))
	}
	if left, gone := run(session); left != 10*time.Minute+kept || gone {
		t.Errorf("a session is looked at again after %s (deleted: %t)", left, gone)
	}
	if _, gone := run(broken); !gone {
		t.Error("a session without an end stays")
	}
	now = start.Add(10*time.Minute + kept)
	if _, gone := run(session); !gone {
		t.Error("a session that has ended stays")
	}
	if _, gone := run(other); gone {
		t.Error("the password of a user was deleted as a session")
	}
	if _, gone := run(created("drover-token-1", "token", ends)); !gone {
		t.Error("a token for scripts that has ended stays")
	}
	if left, gone := run(created("drover-token-2", "token", now.Add(90*24*time.Hour).Format(time.RFC3339))); gone || left <= 0 {
		t.Errorf("a token for scripts is deleted before its end (%t), or looked at again after %s", gone, left)
	}
	if _, gone := run(created("drover-session-4", "token", ends)); gone {
		t.Error("a session that is labelled as a token was deleted")
	}
	named := created("mine", "session", ends)
	if _, gone := run(named); gone {
		t.Error("a Secret that has only the label of a session was deleted")
	}
	s.Namespace = "another"
	if _, gone := run(created("drover-session-3", "session", ends)); gone {
		t.Error("a Secret of another namespace was deleted as a session")
	}
}

func TestUserStatusFollowsThePassword(t *testing.T) {
	env := testkit.Shared(t)
	namespace := env.Workspace(t)
	u := &Users{Client: env.Client, Recorder: events.NewFakeRecorder(10), Namespace: namespace}
	user := &v1.User{ObjectMeta: metav1.ObjectMeta{Name: "alice-of-" + namespace}}
	env.Apply(t, user)
	t.Cleanup(func() { _ = env.Client.Delete(context.Background(), user) })
	reason := func() string {
		t.Helper()
		if _, err := u.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: user.Name}}); err != nil {
			t.Fatal(err)
		}
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(user), user); err != nil {
			t.Fatal(err)
		}
		return meta.FindStatusCondition(user.Status.Conditions, v1.ConditionReady).Reason
	}
	if got := reason(); got != v1.ReasonPasswordMissing || user.Status.Principal != "local:"+user.Name {
		t.Errorf("the status is %+v", user.Status)
	}
	env.Apply(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1.UserSecretPrefix + user.Name, Labels: map[string]string{v1.LabelSecretKind: "user"}},
		Data: map[string][]byte{v1.UserSecretKey: []byte(password.Nothing()), v1.UserSecretUID: []byte(user.UID)}})
	if got := reason(); got != v1.ReasonPasswordSet {
		t.Errorf("the reason is %s", got)
	}
	written := user.ResourceVersion
	if reason(); user.ResourceVersion != written {
		t.Error("a status that did not change was written")
	}
}
