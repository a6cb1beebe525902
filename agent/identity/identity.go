// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package identity maintains the agent's identity as a Cluster of a hub.
//
// It manages the agent's key, joins the hub, and decides which hub the agent connects to and trusts.
//
// The key, the Cluster and the hub's settings are stored in one Secret that all replicas share. The settings that the
// hub has announced remain in force until a user applies a manifest with other servers or checksums.
package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/drover-dev/drover/internal/protocol"
)

// Keys of the Secret that stores the identity.
const (
	keyPrivate    = "key.pem"
	keyCluster    = "cluster"
	keyAudience   = "audience"
	keyJoinedWith = "joined-with"
	keySettings   = "settings"
	keyAfter      = "settings-after"
)

// errBadKey is returned if the Secret contains no usable key. It never contains data from the Secret.
var errBadKey = errors.New("no usable private key: delete the Secret and apply the manifest of a new join token")

// identity is the agent's key, Cluster and settings.
type identity struct {
	// Key is the agent's private key.
	Key ed25519.PrivateKey
	// Cluster is the Cluster that the agent joined as. It is zero until the agent has joined.
	Cluster protocol.ClusterRef
	// Audience is the audience of connect tokens.
	Audience string
	// JoinedWith is the tokenDigest of the join token that the agent used to join.
	JoinedWith string
	// Settings are the settings that the hub announced last, or nil if it has announced none.
	Settings *protocol.Settings
	// After is the fingerprint of the manifest that was in force when Settings were announced. Settings do not apply to
	// any other manifest.
	After string
}

// Joined reports whether the agent has joined the hub.
func (i *identity) Joined() bool { return i.Cluster.UID != "" }

// inForce returns the announced settings if they are in force with this manifest. Otherwise, it returns nil.
func (i *identity) inForce(m Manifest) *protocol.Settings {
	if i.Settings == nil || i.After != m.fingerprint() {
		return nil
	}
	return i.Settings
}

// same reports whether two identities are the same, including their settings.
func (i *identity) same(other *identity) bool {
	digest := func(s *protocol.Settings) string {
		if s == nil {
			return ""
		}
		return s.Digest()
	}
	return i.Key.Equal(other.Key) && i.Cluster == other.Cluster && i.Audience == other.Audience &&
		digest(i.Settings) == digest(other.Settings) && i.After == other.After
}

// tokenDigest returns a digest that identifies a join token without revealing the token.
func tokenDigest(token string) string {
	if token == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func newKey() (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return key, nil
}

// decode decodes an identity from the data of a Secret.
func decode(data map[string][]byte) (*identity, error) {
	key, err := decodeKey(data[keyPrivate])
	if err != nil {
		return nil, err
	}
	id := &identity{Key: key, Audience: string(data[keyAudience]), JoinedWith: string(data[keyJoinedWith]),
		After: string(data[keyAfter])}
	if raw := data[keyCluster]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &id.Cluster); err != nil {
			return nil, fmt.Errorf("decode %s: %w", keyCluster, err)
		}
	}
	if raw := data[keySettings]; len(raw) > 0 {
		id.Settings = &protocol.Settings{}
		if err := json.Unmarshal(raw, id.Settings); err != nil {
			return nil, fmt.Errorf("decode %s: %w", keySettings, err)
		}
	}
	return id, nil
}

// encode encodes an identity as the data of a Secret.
func encode(id *identity) (map[string][]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(id.Key)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", keyPrivate, err)
	}
	data := map[string][]byte{keyPrivate: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})}
	if id.Joined() {
		raw, err := json.Marshal(id.Cluster)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", keyCluster, err)
		}
		data[keyCluster], data[keyAudience], data[keyJoinedWith] = raw, []byte(id.Audience), []byte(id.JoinedWith)
	}
	if id.Settings != nil {
		raw, err := json.Marshal(id.Settings)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", keySettings, err)
		}
		data[keySettings], data[keyAfter] = raw, []byte(id.After)
	}
	return data, nil
}

func decodeKey(raw []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, errBadKey
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errBadKey
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, errBadKey
	}
	return key, nil
}
