// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package credential decides with which identity and where the agent connects, and joins if it has to.
package credential

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
	"k8s.io/apimachinery/pkg/watch"

	"github.com/drover-dev/drover/agent/identity"
	"github.com/drover-dev/drover/agent/join"
	"github.com/drover-dev/drover/agent/link"
	"github.com/drover-dev/drover/agent/trust"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
)

// rewatch is how long to wait before another try to watch the registration Secret.
const rewatch = 5 * time.Second

// NoTokenError says that the agent has not joined and has nothing to join with.
type NoTokenError struct {
	Namespace string
}

// Error says what to do.
func (e *NoTokenError) Error() string {
	return fmt.Sprintf("Secret %s/%s holds no join token: apply the manifest from the hub", e.Namespace, protocol.RegistrationSecret)
}

// Refused makes this a link.Rejection: a user must act.
func (*NoTokenError) Refused() time.Duration { return 0 }

// Secrets are the requests to the API server that a Keeper makes.
type Secrets interface {
	identity.Secrets
	// Watch follows a single Secret; what it is now comes first.
	Watch(ctx context.Context, name string) (watch.Interface, error)
}

// Options of a Keeper.
type Options struct {
	Secrets   Secrets
	Namespace string
	Manifest  trust.Manifest
	// ClusterUID is the UID of the namespace kube-system.
	ClusterUID string
	// Tunnel configures the tunnels.
	Tunnel tunnel.Config
	// Proxy of all connections to the hub. Nil means http.ProxyFromEnvironment.
	Proxy trust.Proxy
	Log   logr.Logger
}

// Keeper is a link.Identity.
type Keeper struct {
	options Options
	store   *identity.Store
	process string // names this process to the hub

	identityMu sync.Mutex         // held while the identity is read or changed, so that only one call joins at a time
	joined     *identity.Identity // with which the agent joined or connected last, nil before that. identityMu guards it.

	mu      sync.Mutex // guards what follows
	digest  string     // of the settings in force
	tried   string     // digest of the join token that was tried last
	later   string     // digest of the join token that may work once the agent is no longer the Cluster that it is
	key     string     // that the last target is of, as keyOf has it
	leaving bool       // whether the agent is being uninstalled
}

// New makes a Keeper.
func New(o Options) *Keeper {
	if o.Proxy == nil {
		o.Proxy = http.ProxyFromEnvironment
	}
	return &Keeper{options: o, store: identity.NewStore(o.Secrets), process: instance()}
}

// Instance names this process: to the hub in connect tokens, and to other replicas in the Lease of the leader.
func (k *Keeper) Instance() string { return k.process }

// instance names this process for the hub, which distinguishes the tunnels of replicas by it: the name of the pod, for people,
// and something random, since a container that restarts keeps the pod's.
func instance() string {
	host, err := os.Hostname()
	if err != nil {
		host = "agent"
	}
	return protocol.Cut(host, 64) + "/" + rand.Text()
}

// Target returns where to connect and with which identity. It joins first if the agent has not joined yet, or if the hub refused it and there is a
// new join token. Everything is read again, so that new roots and servers apply to the next connection.
func (k *Keeper) Target(ctx context.Context, last error) (*link.Target, error) {
	k.identityMu.Lock()
	defer k.identityMu.Unlock()
	token, bundle, err := k.registration(ctx)
	if err != nil {
		return nil, err
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

// registration reads the registration Secret. A missing one is not an error: an agent that has joined does not need it.
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

func (k *Keeper) resolve(ctx context.Context, id *identity.Identity, bundle []byte) (trust.Hub, error) {
	announced := trust.Announced{Settings: id.Settings, After: id.After}
	digest := ""
	if s := announced.InForce(k.options.Manifest); s != nil {
		digest = s.Digest()
	}
	k.setDigest(digest)
	return trust.Resolve(ctx, k.options.Manifest, bundle, announced, trust.FetchBundle(k.options.Proxy))
}

// join makes the agent, which is id, the Cluster of a join token, with a key that may be another than its present one.
func (k *Keeper) join(ctx context.Context, hub trust.Hub, id *identity.Identity, key ed25519.PrivateKey, token string) (*identity.Identity, error) {
	if token == "" {
		return nil, &NoTokenError{Namespace: k.options.Namespace}
	}
	answer, err := join.Join(ctx, hub, k.options.Proxy, join.Input{
		Token: token, Key: key, ClusterUID: k.options.ClusterUID, Current: id.Cluster, CurrentKey: id.Key,
	})
	if err != nil {
		k.refused(token, err)
		return nil, err
	}
	joined := &identity.Identity{
		Key: key, Cluster: answer.Cluster, Audience: answer.Audience, JoinedWith: identity.TokenDigest(token),
		Settings: &answer.Settings, After: k.options.Manifest.Fingerprint(),
	}
	if key.Equal(id.Key) {
		err = k.store.Joined(ctx, joined)
	} else {
		err = k.store.Put(ctx, joined)
	}
	k.try(token)
	if err != nil {
		return nil, err
	}
	k.joined = joined
	k.options.Log.Info("joined", "cluster", answer.Cluster.String(), "audience", answer.Audience)
	return joined, nil
}

func (k *Keeper) target(id *identity.Identity, hub trust.Hub) *link.Target {
	k.mu.Lock()
	k.key = keyOf(id.Key)
	k.mu.Unlock()
	dialer := &tunnel.Dialer{Config: k.options.Tunnel, TLS: hub.TLS(), Proxy: k.options.Proxy}
	return &link.Target{
		Servers: hub.Servers,
		Dial: func(ctx context.Context, url string, header http.Header) (link.Tunnel, error) {
			conn, err := dialer.Dial(ctx, url, header)
			if err != nil {
				return nil, k.explain(ctx, hub, url, err)
			}
			return conn, nil
		},
		Token: func() (string, error) {
			return protocol.SignConnectToken(id.Key, protocol.ConnectClaims{
				ID: rand.Text(), Audience: id.Audience, Cluster: id.Cluster, ClusterUID: k.options.ClusterUID, Instance: k.process, IssuedAt: time.Now(),
			})
		},
	}
}

// Announce stores settings that the hub announced, for later connections.
func (k *Keeper) Announce(ctx context.Context, s protocol.Settings) error {
	if err := k.store.SetSettings(ctx, s, k.options.Manifest.Fingerprint()); err != nil {
		return err
	}
	k.setDigest(s.Digest())
	return nil
}

// Digest is the digest of the settings in force, empty if none were announced under this manifest.
func (k *Keeper) Digest() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.digest
}

func (k *Keeper) setDigest(digest string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.digest = digest
}

// explain adds the cause of a refusal as far as the agent can find it.
func (k *Keeper) explain(ctx context.Context, hub trust.Hub, url string, err error) error {
	refused := (*tunnel.HandshakeError)(nil)
	if !errors.As(err, &refused) || refused.StatusCode != http.StatusUnauthorized {
		return err
	}
	if skew, ok := clockSkew(ctx, hub, k.options.Proxy, url); ok {
		return fmt.Errorf("%w: %s", err, skew)
	}
	return err
}
