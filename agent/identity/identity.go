// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package identity stores the agent's key, its Cluster and the hub's settings in one Secret that all replicas share.
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

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

// Keys of the Secret.
const (
	keyPrivate    = "key.pem"
	keyCluster    = "cluster"
	keyAudience   = "audience"
	keyJoinedWith = "joined-with"
	keySettings   = "settings"
	keyAfter      = "settings-after"
)

// errBadKey says that the Secret holds no usable key. It never holds what the Secret has.
var errBadKey = errors.New("no usable private key: delete the Secret and apply the manifest of a new join token")

// Identity is the agent's key, Cluster and settings.
type Identity struct {
	// Key is the agent's private key.
	Key ed25519.PrivateKey
	// Cluster that it is. Zero until it has joined.
	Cluster protocol.ClusterRef
	// Audience to put into connect tokens.
	Audience string
	// JoinedWith is TokenDigest of the join token that it joined with.
	JoinedWith string
	// Settings that the hub announced last, nil if none.
	Settings *protocol.Settings
	// After is the fingerprint of the manifest that was in force when Settings came. Under another manifest they are void.
	After string
}

// Joined reports whether the agent has joined as a Cluster.
func (i *Identity) Joined() bool { return i.Cluster.UID != "" }

// TokenDigest identifies a join token without holding it.
func TokenDigest(token string) string {
	if token == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Of reads the agent's identity from a Secret.
func Of(secret *corev1.Secret) (*Identity, error) { return decode(secret.Data) }

// NewKey makes a key.
func NewKey() (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return key, nil
}

// decode reads the data of the Secret.
func decode(data map[string][]byte) (*Identity, error) {
	key, err := decodeKey(data[keyPrivate])
	if err != nil {
		return nil, err
	}
	id := &Identity{Key: key, Audience: string(data[keyAudience]), JoinedWith: string(data[keyJoinedWith]), After: string(data[keyAfter])}
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

// encode makes the data of the Secret.
func encode(id *Identity) (map[string][]byte, error) {
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
