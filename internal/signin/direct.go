// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/signin/token"
)

// keyDirect has the time until which members may accept tokens of a session without the hub. Until then its Secret stays, so that it can be told that the session was ended.
const keyDirect = "direct"

// directMargin is how much later than the token that is given keyDirect is, so that a client that asks again and again writes little.
const directMargin = 10 * time.Minute

// Direct is what the issuer knows of direct access. The zero value gives no token for it.
type Direct struct {
	// Path, between the issuer and <namespace>/<name>, makes the audience of a token for direct access: the URL of the cluster at the hub.
	Path string
	// Lifetime returns how long such a token of a user is valid for a cluster, and 0 if the user may not reach it, or it has no direct access.
	Lifetime func(context.Context, identity.Identity, types.NamespacedName) (time.Duration, error)
}

// cluster returns the cluster of an audience for direct access, <namespace>/<name>.
func (d Direct) cluster(issuer, audience string) (string, bool) {
	name, found := strings.CutPrefix(audience, issuer+d.Path)
	return name, found && d.Lifetime != nil && isCluster(name)
}

// Audience returns the audience of tokens for direct access to a cluster.
func (s *Server) Audience(cluster types.NamespacedName) string {
	return s.issuer + s.direct.Path + cluster.String()
}

// Issuer returns the URL that is in tokens.
func (s *Server) Issuer() string { return s.issuer }

// giveDirect gives a token by which the user of a session reaches a cluster without the hub. It lives for longer than other tokens, is worthless at the hub, and is
// noted in its session: what ends the session must be told to members as long as there may be such tokens.
func (s *Server) giveDirect(ctx context.Context, current *loaded, v verified, id identity.Identity) (granted, error) {
	none := &protocolError{"invalid_target", "the cluster has no direct access, or you may not reach it"} // one answer: it tells no one which clusters there are
	name, _ := s.direct.cluster(s.issuer, v.Audience[0])
	namespace, name, _ := strings.Cut(name, "/")
	lifetime, err := s.direct.Lifetime(ctx, id, types.NamespacedName{Namespace: namespace, Name: name})
	if err != nil {
		return granted{}, err
	} else if lifetime <= 0 {
		return granted{}, none
	}
	session := &corev1.Secret{}
	if err = s.client.Get(ctx, s.name(SessionPrefix+v.Session), session); apierrors.IsNotFound(err) { // the cache may not have it yet, as in inSession
		err = s.live.Get(ctx, s.name(SessionPrefix+v.Session), session)
	}
	if client.IgnoreNotFound(err) != nil {
		return granted{}, fmt.Errorf("read session %s: %w", v.Session, err)
	} else if _, lasts := kept(session); err != nil || !lasts {
		return granted{}, invalid("subject_token: direct access takes a session with the scope %s; sign in again", scopeOffline)
	}
	now := s.now()
	until := now.Add(min(lifetime, token.LongestDirect))
	if last := timeOf(session, keyBegun).Add(s.bounds.Lifetime); last.Before(until) {
		until = last
	}
	if !now.Before(until) {
		return granted{}, invalid("subject_token: the session has ended; sign in again")
	}
	if err := s.noteDirect(ctx, session, until); err != nil {
		return granted{}, err
	}
	signed, err := token.SignFor(token.LongestDirect, current.active, token.Claims{
		Issuer: s.issuer, Subject: v.Subject, Audience: v.Audience, Authenticated: v.Authenticated, Session: v.Session, UID: v.UID, Groups: id.Groups, Expiry: jwt.NewNumericDate(until),
	}, now)
	if err != nil {
		return granted{}, err
	}
	return granted{Access: signed, Issued: typeAccessToken, Type: "Bearer", Expires: int(until.Sub(now) / time.Second)}, nil
}

// noteDirect notes in a session that it has a token for direct access until a time. From then on the session does not go with its user or provider any more.
func (s *Server) noteDirect(ctx context.Context, session *corev1.Secret, until time.Time) error {
	if !timeOf(session, keyDirect).Before(until) && len(session.OwnerReferences) == 0 && len(session.Data[keyRevoked]) == 0 {
		return nil
	}
	note := base64.StdEncoding.EncodeToString([]byte(until.Add(directMargin).UTC().Format(time.RFC3339)))
	written := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: session.Namespace, Name: session.Name}}
	raw, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": session.UID, "ownerReferences": nil}, "data": map[string]string{keyDirect: note},
	})
	if err != nil {
		return fmt.Errorf("note direct access in session %s: %w", session.Name, err)
	}
	err = s.client.Patch(ctx, written, client.RawPatch(types.MergePatchType, raw))
	if apierrors.IsNotFound(err) || err == nil && len(written.Data[keyRevoked]) > 0 {
		return invalid("subject_token: the session was ended; sign in again")
	} else if err != nil {
		return fmt.Errorf("note direct access in session %s: %w", session.Name, err)
	}
	return nil
}

// KeepDeleted makes a session again, as one that was revoked, whose Secret someone has deleted although members may accept its tokens: without it they would not be told.
func (s *Server) KeepDeleted(ctx context.Context, deleted client.Object) error {
	session, ok := deleted.(*corev1.Secret)
	if !ok || !s.Decides(deleted) || !s.now().Before(timeOf(session, keyDirect)) {
		return nil
	}
	data := map[string][]byte{keyRevoked: []byte("true")}
	for _, key := range []string{keyUID, keyBegun, keyEnds, keyPrincipal, keyProvider, keyProviderUID, keyDirect} {
		if value, has := session.Data[key]; has {
			data[key] = value
		}
	}
	again := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: session.Namespace, Name: session.Name, Labels: session.Labels}, Type: session.Type, Data: data}
	if err := s.client.Create(ctx, again); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("tell members that session %s was deleted: %w", session.Name, err)
	}
	return nil
}

// PublishedKeys returns the keys that verify tokens, as a JSON Web Key Set.
func (s *Server) PublishedKeys(ctx context.Context) ([]byte, error) {
	current, err := s.keys(ctx)
	if err != nil {
		return nil, err
	}
	return json.Marshal(current.set.JWKS())
}

// Denied returns the IDs of those sessions, in order, whose tokens for direct access members must refuse although they may not have expired, and when the first of
// these leaves the list; zero for none.
func (s *Server) Denied(ctx context.Context) (denied []string, again time.Time, err error) {
	var sessions corev1.SecretList
	if err := s.client.List(ctx, &sessions, client.InNamespace(s.namespace), client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindSession}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, again, fmt.Errorf("list sessions: %w", err)
	}
	now := s.now()
	for i := range sessions.Items {
		session := &sessions.Items[i]
		until := timeOf(session, keyDirect)
		id, named := strings.CutPrefix(session.Name, SessionPrefix)
		if !named || !now.Before(until) {
			continue
		}
		stands, err := s.sessionStands(ctx, session)
		if err != nil {
			return nil, again, err
		}
		if stands {
			continue
		}
		denied = append(denied, id)
		if again.IsZero() || until.Before(again) {
			again = until
		}
	}
	slices.Sort(denied)
	return denied, again, nil
}

// sessionStands reports, from the cache, whether a session was not ended and its user may still sign in.
func (s *Server) sessionStands(ctx context.Context, session *corev1.Secret) (bool, error) {
	if len(session.Data[keyRevoked]) > 0 {
		return false, nil
	}
	var err error
	if len(session.Data[keyProvider]) > 0 {
		err = s.stands(ctx, s.client, whoOf(session))
	} else {
		user := session.Labels[labelUser]
		if _, err = s.standing(ctx, s.client, user, string(session.Data[keyUID])); err == nil {
			secret := &corev1.Secret{}
			err = client.IgnoreNotFound(s.client.Get(ctx, s.name(v1.UserSecretPrefix+user), secret))
			if hash := string(secret.Data[v1.UserSecretKey]); err == nil && (hash == "" || string(session.Data[keyPassword]) != digest(hash)) {
				err = errStanding
			}
		}
	}
	if errors.Is(err, errStanding) {
		return false, nil
	}
	return err == nil, err
}

// Changes reports whether an event of an object that Decides may change what members are told of sessions and keys. before is nil for an object that was created, and
// after for one that was deleted. That a session which was not ended has another token changes nothing: there are as many such events as users of direct access.
func (s *Server) Changes(ctx context.Context, before, after client.Object) bool {
	is := func(o client.Object) (session *corev1.Secret) {
		if secret, ok := o.(*corev1.Secret); ok && secret.Labels[v1.LabelSecretKind] == v1.SecretKindSession {
			session = secret
		}
		return session
	}
	told := func(session *corev1.Secret) bool { // of one whose tokens have not all expired, and that does not stand as the cache has its user
		if !s.now().Before(timeOf(session, keyDirect)) {
			return false
		}
		stands, err := s.sessionStands(ctx, session)
		return err != nil || !stands
	}
	was, now := is(before), is(after)
	switch {
	case was == nil && now == nil: // a user, a provider, a password or the keys
		return true
	case now == nil:
		return s.now().Before(timeOf(was, keyDirect))
	}
	return told(now) || was != nil && told(was)
}

// Decides reports whether a Secret decides about direct access: a session that has tokens for it, the keys, or the password of a user.
func (s *Server) Decides(o client.Object) bool {
	if o.GetNamespace() != s.namespace {
		return false
	}
	switch o.GetLabels()[v1.LabelSecretKind] {
	case v1.SecretKindSignIn, v1.SecretKindUser:
		return true
	case v1.SecretKindSession:
		secret, ok := o.(*corev1.Secret)
		return ok && len(secret.Data[keyDirect]) > 0
	}
	return false
}
