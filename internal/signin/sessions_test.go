// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/accesstoken"
	"github.com/drover-dev/drover/internal/signin/grant"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/password"
	sessions "github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/test/testkit"
)

// listed returns the user's sessions as the hub lists them.
func (f *fixture) listed(access string) []grant.SessionInfo {
	f.t.Helper()
	got := f.call(http.MethodGet, grant.PathSessions, access, "")
	var list grant.SessionList
	if err := json.Unmarshal([]byte(got.body), &list); err != nil || got.code != http.StatusOK ||
		got.header.Get("Cache-Control") != "no-store" || got.header.Get("Access-Control-Allow-Origin") != "" {
		f.t.Fatalf("list sessions: %d %v %s (%v)", got.code, got.header, got.body, err)
	}
	return list.Items
}

// current returns the ID of a token's session.
func (f *fixture) current(access string) string {
	f.t.Helper()
	for _, one := range f.listed(access) {
		if one.Current {
			return one.ID
		}
	}
	f.t.Fatal("no session is the current one")
	return ""
}

func (f *fixture) end(id, access string) response {
	f.t.Helper()
	return f.call(http.MethodDelete, grant.PathSessions+"/"+id, access, "")
}

func TestUserListsAndEndsTheirSessions(t *testing.T) {
	f := newFixture(t)
	first := f.session()
	f.wait(time.Minute)
	page := f.sessionAt(f.server.URL + oauth.PathPage)
	f.wait(time.Minute)
	codes := f.device("openid")
	f.approved(codes.Complete)
	_, device := f.poll(codes.Device)
	renewed := f.refreshed(first.Refresh)
	list := f.listed(page.Access)
	var clients []string
	for _, one := range list {
		clients = append(clients, fmt.Sprintf("%s/%t/%t", one.Client, one.Current, one.Renewed != nil))
	}
	if got, want := fmt.Sprint(clients), "[device/false/false page/true/true kubectl/false/true]"; got != want {
		t.Fatalf("the sessions are %s, want %s", got, want)
	}
	now := f.now().UTC().Truncate(time.Second)
	if oldest := list[2]; now.Sub(oldest.Started) < 2*time.Minute || now.Sub(*oldest.Renewed) > time.Second ||
		!oldest.Expires.Equal(now.Add(bounds.Idle)) {
		t.Errorf("the oldest session is %+v, want it renewed now (%s), and to end after the idle timeout", oldest, now)
	}
	raw, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{first.Access, renewed.Refresh, page.Refresh, device.Access} {
		if strings.Contains(string(raw), secret) {
			t.Error("the list contains a token")
		}
	}

	if got := f.end(list[2].ID, page.Access); got.code != http.StatusOK {
		t.Fatalf("end the session of kubectl: %d %s", got.code, got.body)
	}
	f.ended(renewed)
	if left := f.listed(page.Access); len(left) != 2 || left[0].ID != list[0].ID || left[1].ID != list[1].ID {
		t.Errorf("the sessions are then %+v, want the sessions of the device and the page", left)
	}
	writes := &counting{Client: f.Client}
	f.cache.Client = writes
	if got := f.end(list[2].ID, page.Access); got.code != http.StatusNotFound || writes.patches.Load() != 0 {
		t.Errorf("end it again: %d with %d writes, want 404 and none", got.code, writes.patches.Load())
	}
	if got := f.end(list[1].ID, page.Access); got.code != http.StatusOK {
		t.Errorf("end the current session: %d %s", got.code, got.body)
	}
	f.ended(page)
	if _, err := f.identify(device.Access); err != nil {
		t.Errorf("the session of the device ended too: %v", err)
	}
	f.wait(10 * time.Minute)
	later := f.session()
	if left := f.listed(later.Access); len(left) != 1 {
		t.Errorf("the sessions are %+v, want only the new one, because the tokens of the device have expired", left)
	}
}

func TestUserOfAProviderSeesOnlyTheirSessions(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	f.provide(p)
	local, own := f.session(), f.signInAt(p)
	list := f.listed(own.AccessToken)
	if len(list) != 1 || !list[0].Current {
		t.Fatalf("the sessions are %+v, want the current one", list)
	}
	if got := f.end(f.current(local.Access), own.AccessToken); got.code != http.StatusNotFound {
		t.Errorf("end the session of a local user: %d, want 404", got.code)
	}
	if got := f.end(list[0].ID, own.AccessToken); got.code != http.StatusOK {
		t.Errorf("end their own: %d %s", got.code, got.body)
	}
	if _, err := f.authenticated(own.AccessToken); err == nil {
		t.Error("the token of the session is accepted")
	}
}

// TestSessionsOfOthersCannotBeFoundOrEnded sends the IDs of sessions that belong to others, and IDs of none.
func TestSessionsOfOthersCannotBeFoundOrEnded(t *testing.T) {
	f := newFixture(t)
	alice := f.session()
	theirs := f.current(alice.Access)
	script := f.make(alice.Access, `{}`)
	f.user = &v1.User{ObjectMeta: metav1.ObjectMeta{Name: "mallory-of-" + f.namespace}}
	f.addUser(f.user)
	mallory := f.session()
	if list := f.listed(mallory.Access); len(list) != 1 || list[0].ID == theirs {
		t.Errorf("another user's sessions are listed: %+v", list)
	}
	unknown := f.end(randomID(), mallory.Access)
	if unknown.code != http.StatusNotFound {
		t.Fatalf("an unknown ID: %d %s, want 404", unknown.code, unknown.body)
	}
	for name, id := range map[string]string{
		"another user's": theirs, "a token for scripts": script.ID[:32], "capitals": strings.ToUpper(theirs),
		"short": theirs[:31], "another Secret": "..%2fdrover-sign-in",
		"encoded": "%" + fmt.Sprintf("%x", theirs[0]) + theirs[1:], "empty": "%20",
		"a refresh token": alice.Refresh, "an access token": alice.Access, "long": strings.Repeat("a", 4<<10),
	} {
		if got := f.end(id, mallory.Access); got.code != unknown.code || got.body != unknown.body {
			t.Errorf("%s: %d %s, want the answer for an unknown ID", name, got.code, got.body)
		}
	}
	f.refreshed(alice.Refresh)

	// The label is the same for a new user with the name.
	former := f.current(mallory.Access)
	password := &corev1.Secret{}
	password.Namespace, password.Name = f.namespace, v1.UserSecretPrefix+f.user.Name
	for _, object := range []client.Object{f.user, password} {
		if err := f.Client.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	f.user = &v1.User{ObjectMeta: metav1.ObjectMeta{Name: f.user.Name}}
	f.addUser(f.user)
	again := f.session()
	if list := f.listed(again.Access); len(list) != 1 {
		t.Errorf("the sessions of an earlier user with the name are listed: %+v", list)
	}
	if got := f.end(former, again.Access); got.code != http.StatusNotFound {
		t.Errorf("the session of an earlier user: %d, want 404", got.code)
	}
}

// A user who has changed the password sees when the thief's tokens end.
func TestSessionOfAFormerPasswordIsListedWhileItsTokensAreValid(t *testing.T) {
	f := newFixture(t)
	former := f.current(f.session().Access)
	another, err := password.Hash(secretPassword)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace,
		Name: v1.UserSecretPrefix + f.user.Name}}
	testkit.Update(t, f.Client, secret, func(s *corev1.Secret) { s.Data[v1.UserSecretKey] = []byte(another) })
	own := f.session()
	list := f.listed(own.Access)
	if soon := f.now().Add(10 * time.Minute); len(list) != 2 || list[0].Expires.Equal(list[1].Expires) ||
		slices.ContainsFunc(list, func(s grant.SessionInfo) bool { return s.ID == former && s.Expires.After(soon) }) {
		t.Errorf("the sessions are %+v, want the former one to end within 10 minutes, and the new one later", list)
	}
	f.wait(10 * time.Minute)
	renewed := f.refreshed(own.Refresh)
	if list := f.listed(renewed.Access); len(list) != 1 || list[0].ID == former {
		t.Errorf("the sessions are then %+v, want only the new one", list)
	}
}

// stale is a cache that has not seen a session's revocation.
type stale struct{ client.Client }

func (c stale) Get(ctx context.Context, key client.ObjectKey, object client.Object, o ...client.GetOption) error {
	err := c.Client.Get(ctx, key, object, o...)
	if secret, ok := object.(*corev1.Secret); ok {
		delete(secret.Data, sessions.KeyRevoked)
	}
	return err
}

func TestRequestsDoNotWaitForTheCacheOfAnother(t *testing.T) {
	f := newFixture(t)
	first, second := f.session(), f.session()
	id := f.current(first.Access)
	writes := &counting{Client: stale{f.Client}}
	f.cache.Client = writes
	done := make(chan response, 1)
	go func() { done <- f.end(id, second.Access) }()
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if writes.patches.Load() == 0 {
			return errors.New("the session is not revoked yet")
		}
		return nil
	})
	begun := time.Now()
	f.listed(second.Access)
	if took := time.Since(begun); took > accesstoken.Seen/2 {
		t.Errorf("the list took %s, want it while the other request waits for the cache", took)
	}
	if got := <-done; got.code != http.StatusOK {
		t.Errorf("end a session: %d %s, want 200 even if the cache is late", got.code, got.body)
	}
}

// TestOnlySessionsListAndEndSessions sends other credentials than a token of a session for all clusters.
func TestOnlySessionsListAndEndSessions(t *testing.T) {
	f := newFixture(t)
	own := f.session()
	id := f.current(own.Access)
	script := f.make(own.Access, `{}`).Token
	one := f.narrowed(own.Access, "team/prod").Access
	disabled := f.session()
	for name, tt := range map[string]struct {
		token string
		code  int
	}{
		"a token for scripts":     {script, http.StatusUnauthorized},
		"a token for one cluster": {one, http.StatusForbidden},
		"a refresh token":         {own.Refresh, http.StatusUnauthorized},
		"a forged token":          {own.Access[:len(own.Access)-6] + "AAAAAA", http.StatusUnauthorized},
		"no token":                {"", http.StatusUnauthorized},
	} {
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			path := grant.PathSessions
			if method == http.MethodDelete {
				path += "/" + id
			}
			if got := f.call(method, path, tt.token, ""); got.code != tt.code || strings.Contains(got.body, id) {
				t.Errorf("%s with %s: %d %s, want %d", method, name, got.code, got.body, tt.code)
			}
		}
	}

	// Another site can only send what the browser adds to requests: cookies, and no Authorization header.
	browser := f.browser()
	f.login(browser, f.open(browser, "v"), f.user.Name, secretPassword)
	address := f.server.URL + grant.PathSessions + "/" + id
	for method, want := range map[string]int{http.MethodDelete: http.StatusUnauthorized,
		http.MethodPost: http.StatusMethodNotAllowed, http.MethodOptions: http.StatusMethodNotAllowed} {
		got := f.send(browser, method, address, nil, http.Header{"Origin": {"https://evil.example"},
			"Access-Control-Request-Method": {http.MethodDelete}, "Access-Control-Request-Headers": {"authorization"}})
		permitted := got.header.Get("Access-Control-Allow-Origin") + got.header.Get("Access-Control-Allow-Methods")
		if got.code != want || permitted != "" {
			t.Errorf("%s from another site: %d %v, want %d and no permission", method, got.code, got.header, want)
		}
	}
	f.refreshed(own.Refresh)

	testkit.Update(t, f.Client, f.user, func(u *v1.User) { u.Spec.Disabled = true })
	if got := f.end(id, disabled.Access); got.code != http.StatusUnauthorized {
		t.Errorf("a disabled user ends a session: %d, want 401", got.code)
	}
}

func TestSessionOfAnotherReplicaCanBeEnded(t *testing.T) {
	f := newFixture(t)
	own, other := f.session(), f.session()
	id := f.current(other.Access)
	f.cache.Client = noSessions{f.Client}
	if got := f.end(id, own.Access); got.code != http.StatusOK {
		t.Fatalf("end a session that is in no cache yet: %d %s", got.code, got.body)
	}
	f.cache.Client = f.Client
	f.ended(other)
	secret := &corev1.Secret{}
	err := f.Client.Get(t.Context(), f.key(sessions.Prefix+id), secret)
	if err != nil || len(secret.Data["revoked"]) == 0 {
		t.Errorf("the session is %v (%v), want it to be kept as revoked, so that its code stays used", secret.Data, err)
	}
}
