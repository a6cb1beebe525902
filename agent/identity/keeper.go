// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/agent/link"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
)

// rewatch is the delay before the next attempt to watch the registration Secret.
const rewatch = 5 * time.Second

// noTokenError is returned if the agent has not joined and has no join token.
type noTokenError struct {
	Namespace string
}

// Error returns a message that explains what the user must do.
func (e *noTokenError) Error() string {
	return fmt.Sprintf("Secret %s/%s holds no join token: apply the manifest from the hub", e.Namespace,
		protocol.RegistrationSecret)
}

// Refused makes this error a link.Rejection, because manual action is required.
func (*noTokenError) Refused() time.Duration { return 0 }

// Options configure a Keeper.
type Options struct {
	Secrets   Secrets
	Namespace string
	Manifest  Manifest
	// ClusterUID is the UID of the kube-system namespace.
	ClusterUID string
	// Tunnel configures the tunnels.
	Tunnel tunnel.Config
	// NodeAgent is true for a node agent. A node agent never joins the hub. It uses the identity of the agent's
	// replicas.
	NodeAgent bool
	// Proxy chooses the proxy for all connections to the hub. It defaults to http.ProxyFromEnvironment.
	Proxy Proxy
	Log   logr.Logger
}

// Keeper maintains the agent's identity. It provides Target and Changed for a link.Link.
type Keeper struct {
	options Options
	store   *store
	process string // name of this process, for the hub

	identityMu sync.Mutex // held while the identity is read or changed, so that only one call joins at a time
	joined     *identity  // identity that the agent last joined or connected with, or nil. identityMu guards it.

	mu sync.Mutex // guards the fields below
	// proven is the identity that the hub accepted last, or nil. It includes the settings that the hub has announced since
	// then. The value is replaced, but never modified.
	proven  *identity
	digest  string // the digest of the settings in force
	images  string // image registry from the settings in force
	tried   string // digest of the join token that was most recently tried
	later   string // digest of a join token that may be accepted once the agent has left its current Cluster
	key     string // result of keyOf for the key of the last target
	leaving bool   // set while the agent is being uninstalled
}

// New returns a Keeper.
func New(o Options) *Keeper {
	if o.Proxy == nil {
		o.Proxy = http.ProxyFromEnvironment
	}
	return &Keeper{options: o, store: &store{o.Secrets}, process: instance()}
}

// Instance returns the name of this process. The name appears in connect tokens and in the leader's Lease.
func (k *Keeper) Instance() string { return k.process }

// instance returns a name for this process. The hub uses it to distinguish the tunnels of replicas. The name contains
// the name of the pod, so that users can recognize it, and a random part, because a restarted container keeps the name
// of its pod.
func instance() string {
	host, err := os.Hostname()
	if err != nil {
		host = "agent"
	}
	return protocol.Cut(host, 64) + "/" + rand.Text()
}

// Target returns the target for the next connection. It joins first if the agent has not joined yet, or if the hub has
// refused the agent and there is a new join token. Target reads all data on each call, so new roots and servers apply
// to the next connection.
func (k *Keeper) Target(ctx context.Context, last error) (*link.Target, error) {
	k.identityMu.Lock()
	defer k.identityMu.Unlock()
	token, bundle, err := k.registration(ctx)
	if err != nil {
		return nil, err
	}
	if k.options.NodeAgent {
		// A node agent that was refused tries again when there is a new token, because a replica may have joined with
		// that token.
		k.try(token)
		return k.joinedTarget(ctx, bundle)
	}
	id, err := k.identity(ctx)
	if err != nil {
		return nil, err
	}
	hub, err := k.resolve(ctx, id, bundle)
	if err != nil {
		return nil, err
	}
	if again := link.IsRejection(last) && k.untried(token); !id.Joined() || again {
		if id, err = k.join(ctx, hub, id, id.Key, token); err != nil {
			return nil, err
		}
		if hub, err = k.resolve(ctx, id, bundle); err != nil {
			return nil, err
		}
	}
	return k.target(id, hub), nil
}

// joinedTarget returns the target for the identity that the agent's replicas share. It never writes the identity.
func (k *Keeper) joinedTarget(ctx context.Context, bundle []byte) (*link.Target, error) {
	id, err := k.store.get(ctx)
	if err != nil {
		return nil, err
	}
	if !id.Joined() {
		return nil, errNotJoined
	}
	hub, err := k.resolve(ctx, id, bundle)
	if err != nil {
		return nil, err
	}
	return k.target(id, hub), nil
}

// registration reads the registration Secret. A missing Secret is not an error, because an agent that has joined does
// not need it.
func (k *Keeper) registration(ctx context.Context) (token string, bundle []byte, err error) {
	secret, err := k.options.Secrets.Get(ctx, protocol.RegistrationSecret)
	if apierrors.IsNotFound(err) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	return tokenOf(secret), secret.Data[protocol.KeyCABundle], nil
}

func (k *Keeper) resolve(ctx context.Context, id *identity, bundle []byte) (Endpoint, error) {
	settings := id.inForce(k.options.Manifest)
	k.setInForce(settings)
	hub, err := resolve(ctx, k.options.Manifest, bundle, settings, fetchBundle(k.options.Proxy))
	hub.Proxy = k.options.Proxy
	return hub, err
}

// join joins the hub as the Cluster that the join token belongs to. id is the agent's current identity. key may differ
// from the key in that identity.
func (k *Keeper) join(ctx context.Context, hub Endpoint, id *identity, key ed25519.PrivateKey, token string) (*identity,
	error) {
	if token == "" {
		return nil, &noTokenError{Namespace: k.options.Namespace}
	}
	answer, err := Join(ctx, hub, JoinInput{
		Token: token, Key: key, ClusterUID: k.options.ClusterUID, Current: id.Cluster, CurrentKey: id.Key,
	})
	if err != nil {
		k.refused(token, err)
		return nil, err
	}
	joined := &identity{
		Key: key, Cluster: answer.Cluster, Audience: answer.Audience, JoinedWith: tokenDigest(token),
		Settings: &answer.Settings, After: k.options.Manifest.fingerprint(),
	}
	if key.Equal(id.Key) {
		err = k.store.joined(ctx, joined)
	} else {
		err = k.store.put(ctx, joined)
	}
	k.try(token)
	if err != nil {
		return nil, err
	}
	k.joined = joined
	k.prove(joined)
	k.options.Log.Info("joined", "cluster", answer.Cluster.String(), "audience", answer.Audience)
	return joined, nil
}

func (k *Keeper) target(id *identity, hub Endpoint) *link.Target {
	k.mu.Lock()
	k.key = keyOf(id.Key)
	k.mu.Unlock()
	dialer := &tunnel.Dialer{Config: k.options.Tunnel, TLS: hub.tls(), Proxy: hub.Proxy}
	return &link.Target{
		Servers: hub.Servers,
		Dial: func(ctx context.Context, url string, header http.Header) (link.Serve, error) {
			conn, err := dialer.Dial(ctx, url, header)
			if err != nil {
				return nil, k.explain(ctx, hub, url, err)
			}
			k.prove(id)
			return conn.Serve, nil
		},
		Token: func() (string, error) {
			return protocol.SignConnectToken(id.Key, protocol.ConnectClaims{
				ID: rand.Text(), Audience: id.Audience, Cluster: id.Cluster, ClusterUID: k.options.ClusterUID, Instance: k.process,
				NodeAgent: k.options.NodeAgent, IssuedAt: time.Now(),
			})
		},
	}
}

// Settings returns the http.Handler for protocol.PathSettings. The handler calls changed after it has stored
// settings.
func (k *Keeper) Settings(changed func()) http.Handler {
	store := func(ctx context.Context, s protocol.Settings) error {
		err := k.announce(ctx, s)
		if err == nil {
			changed()
		}
		return err
	}
	return &settingsHandler{store: store, log: k.options.Log}
}

// announce stores the settings that the hub announced, so that later connections use them.
func (k *Keeper) announce(ctx context.Context, s protocol.Settings) error {
	if err := k.store.setSettings(ctx, s, k.options.Manifest.fingerprint()); err != nil {
		return err
	}
	k.setInForce(&s)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.proven != nil {
		next := *k.proven
		next.Settings, next.After = &s, k.options.Manifest.fingerprint()
		k.proven = &next
	}
	return nil
}

// prove records that the hub has accepted an identity.
func (k *Keeper) prove(id *identity) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.proven = id
}

// Digest returns the digest of the settings in force, or "" if the hub has announced none for this manifest.
func (k *Keeper) Digest() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.digest
}

// Registry returns the image registry from the settings in force. See protocol.WithRegistry.
func (k *Keeper) Registry() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.images
}

// setInForce records the digest and registry of the settings in force, or clears them if s is nil.
func (k *Keeper) setInForce(s *protocol.Settings) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.digest, k.images = "", ""; s != nil {
		k.digest, k.images = s.Digest(), s.Registry
	}
}

// explain adds the cause of a refusal to err if the agent can determine it.
func (k *Keeper) explain(ctx context.Context, hub Endpoint, url string, err error) error {
	refused := (*tunnel.HandshakeError)(nil)
	if !errors.As(err, &refused) || refused.StatusCode != http.StatusUnauthorized {
		return err
	}
	if skew, ok := clockSkew(ctx, hub, url); ok {
		return fmt.Errorf("%w: %s", err, skew)
	}
	return err
}
