// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration_test

import (
	"crypto/ed25519"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const memberUID = "0b5a1c1e-6b1f-4a54-9d0c-6d7c2f4f1a11"

// request returns the request of an agent that joins with a token.
func request(key ed25519.PrivateKey, token, clusterUID string) protocol.RegisterRequest {
	return protocol.RegisterRequest{
		PublicKey: key.Public().(ed25519.PublicKey), ClusterUID: clusterUID,
		Proof: ed25519.Sign(key, protocol.ProofPayload(token, clusterUID)),
	}
}

func TestDecideJoin(t *testing.T) {
	token := registration.Token{Value: strings.Repeat("t", 40), Created: now.Add(-time.Hour), TTL: 24 * time.Hour}
	former := registration.Token{Value: strings.Repeat("f", 40)}
	key, otherKey := testkit.Key(t), testkit.Key(t)
	// joined returns the identity of an agent that joined with a token.
	joined := func(key ed25519.PrivateKey, uid string, token registration.Token) *registration.AgentIdentity {
		return &registration.AgentIdentity{PublicKey: key.Public().(ed25519.PublicKey), ClusterUID: uid,
			TokenHash: registration.HashToken(token.Value), OwnerUID: "owner", Joined: now.Add(-time.Minute)}
	}
	for name, tc := range map[string]struct {
		change func(*registration.JoinInput)
		reason string // "" if it joins
		write  bool
	}{
		"the first agent joins": {func(*registration.JoinInput) {}, "", true},
		"the same agent retries and nothing is written": {
			func(in *registration.JoinInput) { in.Current = joined(key, memberUID, token) }, "", false,
		},
		"the same agent retries after the token expired": {func(in *registration.JoinInput) {
			in.Current, in.Token.Created = joined(key, memberUID, token), now.Add(-48*time.Hour)
		}, "", false},
		"the same agent retries after the token was marked as used": {func(in *registration.JoinInput) {
			in.Current, in.Token.Used = joined(key, memberUID, token), true
		}, "", false},
		"a second cluster shows the used token": {
			func(in *registration.JoinInput) { in.Current = joined(key, "other-uid", token) }, v1.ReasonIdentityMismatch, false,
		},
		"the same cluster comes with another key": {
			func(in *registration.JoinInput) { in.Current = joined(otherKey, memberUID, token) }, v1.ReasonTokenUsed, false,
		},
		"a new token replaces key and member": {
			func(in *registration.JoinInput) { in.Current = joined(otherKey, "other-uid", former) }, "", true,
		},
		"a new token that has expired replaces nothing": {func(in *registration.JoinInput) {
			in.Current, in.Token.Created = joined(otherKey, "other-uid", former), now.Add(-48*time.Hour)
		}, v1.ReasonTokenExpired, false},
		"an expired token": {
			func(in *registration.JoinInput) { in.Token.Created = now.Add(-24 * time.Hour) }, v1.ReasonTokenExpired, false,
		},
		"a token of unknown age": {
			func(in *registration.JoinInput) { in.Token.Created = time.Time{} }, v1.ReasonTokenExpired, false,
		},
		"a used token whose agent was revoked": {
			func(in *registration.JoinInput) { in.Token.Used = true }, v1.ReasonTokenUsed, false,
		},
		"an agent of a former Cluster of this name is unknown": {func(in *registration.JoinInput) {
			in.Current = joined(otherKey, "other-uid", token)
			in.Current.OwnerUID = "former-owner"
		}, "", true},
		"a former Cluster's agent does not come back with a used token": {func(in *registration.JoinInput) {
			in.Current, in.Token.Used = joined(key, memberUID, token), true
			in.Current.OwnerUID = "former-owner"
		}, v1.ReasonTokenUsed, false},
		"a proof for another token": {
			func(in *registration.JoinInput) { in.Request = request(key, former.Value, memberUID) }, v1.ReasonIdentityMismatch,
			false,
		},
		"a proof for another cluster": {
			func(in *registration.JoinInput) { in.Request.ClusterUID = "other-uid" }, v1.ReasonIdentityMismatch, false,
		},
		"a proof by another key": {
			func(in *registration.JoinInput) { in.Request.PublicKey = otherKey.Public().(ed25519.PublicKey) },
			v1.ReasonIdentityMismatch, false,
		},
		"no proof": {
			func(in *registration.JoinInput) { in.Request.Proof = nil }, v1.ReasonIdentityMismatch, false,
		},
		"no key": {
			func(in *registration.JoinInput) { in.Request.PublicKey = nil }, v1.ReasonIdentityMismatch, false,
		},
		"a key that is too long": {
			func(in *registration.JoinInput) { in.Request.PublicKey = make([]byte, 33) }, v1.ReasonIdentityMismatch, false,
		},
		"no cluster UID": {
			func(in *registration.JoinInput) { in.Request = request(key, token.Value, "") }, v1.ReasonIdentityMismatch, false,
		},
		"a cluster UID that is too long": {func(in *registration.JoinInput) {
			in.Request = request(key, token.Value, strings.Repeat("u", 65))
		}, v1.ReasonIdentityMismatch, false},
		"a cluster UID that would deface a log": {func(in *registration.JoinInput) {
			in.Request = request(key, token.Value, "\x1b[2Jall is well\n")
		}, v1.ReasonIdentityMismatch, false},
	} {
		t.Run(name, func(t *testing.T) {
			in := registration.JoinInput{Cluster: "team-a/prod-eu", OwnerUID: "owner", Token: token,
				Request: request(key, token.Value, memberUID), Now: now}
			tc.change(&in)
			join, refusal := registration.DecideJoin(in)
			reason := ""
			if refusal != nil {
				reason = refusal.Reason
				if strings.Contains(refusal.Message, token.Value) || strings.ContainsAny(refusal.Message, "\x1b\n") {
					t.Errorf("the message %q contains a value that must not be shown", refusal.Message)
				}
			}
			if reason != tc.reason || join.Write != tc.write {
				t.Fatalf("reason %q, write %t; want %q, %t", reason, join.Write, tc.reason, tc.write)
			}
			if reason != "" {
				return
			}
			want := registration.AgentIdentity{PublicKey: key.Public().(ed25519.PublicKey), ClusterUID: memberUID,
				TokenHash: registration.HashToken(token.Value), OwnerUID: "owner", Joined: now}
			if !tc.write {
				want.Joined = in.Current.Joined
			}
			if fmt.Sprint(join.Identity) != fmt.Sprint(want) {
				t.Errorf("identity %+v, want %+v", join.Identity, want)
			}
		})
	}
}

// CVE-2026-4740: an agent renews its identity under the name of another cluster.
func TestCheckConnect(t *testing.T) {
	for name, tc := range map[string]struct {
		claims  protocol.ConnectClaims
		cluster string
		owner   string
		reason  string
	}{
		"the Cluster's agent": {claimed("uid", memberUID), "uid", "uid", ""},
		"an agent of a former Cluster of this name": {
			claimed("former", memberUID), "uid", "former", v1.ReasonIdentityMismatch,
		},
		"a former agent that claims the present Cluster": {
			claimed("uid", memberUID), "uid", "former", v1.ReasonIdentityMismatch,
		},
		"the Cluster's agent that claims the former Cluster": {
			claimed("former", memberUID), "uid", "uid", v1.ReasonIdentityMismatch,
		},
		"the same key in another cluster": {
			claimed("uid", "other-uid"), "uid", "uid", v1.ReasonIdentityMismatch,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{UID: uid(tc.cluster)}}
			refusal := registration.CheckConnect(tc.claims, cluster, &registration.AgentIdentity{OwnerUID: uid(tc.owner),
				ClusterUID: memberUID})
			if (refusal == nil) != (tc.reason == "") || refusal != nil && refusal.Reason != tc.reason {
				t.Errorf("refusal %v, want %q", refusal, tc.reason)
			}
		})
	}
}

// An adopted agent keeps using the UID of the Cluster object that it joined.
func TestCheckConnectForAnAdoptedAgent(t *testing.T) {
	for name, tc := range map[string]struct {
		claims  protocol.ConnectClaims
		cluster string
		refused bool
	}{
		"it names the former Cluster":                       {claimed("former", memberUID), "uid", false},
		"it names the present Cluster":                      {claimed("uid", memberUID), "uid", false},
		"it names another Cluster":                          {claimed("other", memberUID), "uid", true},
		"it names no Cluster":                               {claimed("", memberUID), "uid", true},
		"its key from another member":                       {claimed("former", "other-uid"), "uid", true},
		"the Cluster was recreated after the adoption":      {claimed("former", memberUID), "newer", true},
		"the Cluster was recreated, and the agent names it": {claimed("newer", memberUID), "newer", true},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "prod-eu", UID: uid(tc.cluster)}}
			refusal := registration.CheckConnect(tc.claims, cluster,
				&registration.AgentIdentity{OwnerUID: "uid", FormerOwner: "former", ClusterUID: memberUID})
			if (refusal != nil) != tc.refused {
				t.Errorf("refusal %v, want a refusal: %t", refusal, tc.refused)
			}
			if refusal != nil && tc.claims.ClusterUID == memberUID &&
				!strings.Contains(refusal.Message, "kubectl drover adopt prod-eu -w team-a") {
				t.Errorf("the message %q does not say what to do", refusal.Message)
			}
		})
	}
}

func TestDecideAdoption(t *testing.T) {
	key := testkit.Key(t)
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "prod-eu", UID: "new"}}
	restored := func(change func(*registration.AgentIdentity)) *corev1.Secret {
		id := registration.AgentIdentity{PublicKey: key.Public().(ed25519.PublicKey), ClusterUID: memberUID,
			TokenHash: "hash", OwnerUID: "old", Joined: now}
		change(&id)
		secret := &corev1.Secret{}
		registration.WriteIdentity(secret, cluster, id)
		secret.OwnerReferences = nil // this is how a restore leaves it
		return secret
	}
	asRestored := func(*registration.AgentIdentity) {}
	for name, tc := range map[string]struct {
		secret  *corev1.Secret
		former  string // "" if nothing is written
		problem string
	}{
		"a restored agent is adopted": {restored(asRestored), "old", ""},
		"an agent that was adopted before keeps its first UID": {
			restored(func(id *registration.AgentIdentity) { id.FormerOwner = "first" }), "first", "",
		},
		"the Cluster's own agent needs nothing": {
			restored(func(id *registration.AgentIdentity) { id.OwnerUID = "new" }), "", "",
		},
		"a Cluster without an agent":                         {nil, "", "no agent is known"},
		"a revoked agent, whose Secret is not in the backup": {nil, "", "apply the manifest"},
		"a Secret of a user": {
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "prod-eu-agent"}}, "", "not Drover's",
		},
		"a Secret that does not say whose agent it was": {
			restored(func(id *registration.AgentIdentity) { id.OwnerUID = "" }), "", "does not say which",
		},
		"a Secret that does not say which member": {
			restored(func(id *registration.AgentIdentity) { id.ClusterUID = "" }), "", "does not say which",
		},
		"a Secret without a key": {
			restored(func(id *registration.AgentIdentity) { id.PublicKey = nil }), "", "not an Ed25519 public key",
		},
		"a Secret of another Cluster under this Cluster's name": {
			func() *corev1.Secret { s := restored(asRestored); s.Labels[v1.LabelCluster] = "other"; return s }(), "",
			"not Drover's",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := registration.DecideAdoption(cluster, tc.secret)
			if (got.Identity != nil) != (tc.former != "") || (got.Problem != "") != (tc.problem != "") ||
				!strings.Contains(got.Problem, tc.problem) {
				t.Fatalf("%+v", got)
			}
			if got.Identity == nil {
				return
			}
			registration.WriteIdentity(tc.secret, cluster, *got.Identity)
			id, err := registration.ReadIdentity(tc.secret)
			want := registration.AgentIdentity{PublicKey: key.Public().(ed25519.PublicKey), ClusterUID: memberUID,
				TokenHash: "hash", OwnerUID: "new", FormerOwner: uid(tc.former), Joined: now}
			if err != nil || fmt.Sprint(*id) != fmt.Sprint(want) ||
				!registration.Ours(tc.secret, "prod-eu", v1.SecretKindAgent) || tc.secret.OwnerReferences[0].UID != "new" {
				t.Errorf("written %+v, %v, want %+v", id, err, want)
			}
			if again := registration.DecideAdoption(cluster, tc.secret); again.Identity != nil || again.Problem != "" {
				t.Errorf("second adoption %+v, want none", again)
			}
		})
	}
	leaving := cluster.DeepCopy()
	leaving.DeletionTimestamp = &metav1.Time{Time: now}
	if got := registration.DecideAdoption(leaving, restored(asRestored)); got.Identity != nil || got.Problem == "" {
		t.Errorf("adoption %+v for a Cluster that is being deleted, want none", got)
	}
}

func claimed(owner, member string) protocol.ConnectClaims {
	return protocol.ConnectClaims{Cluster: protocol.ClusterRef{Namespace: "team-a", Name: "prod-eu", UID: owner},
		ClusterUID: member}
}
