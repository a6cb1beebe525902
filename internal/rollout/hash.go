// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Version is a version as images and nodes have it: "+", which no tag can have, is "-".
func Version(version string) string { return strings.ReplaceAll(version, "+", "-") }

// SecretDigest stands for the content of a Secret in Hash.
func SecretDigest(secret *corev1.Secret) (string, error) {
	return digest(secret.Type, secret.Data)
}

// Hash is what a node is labelled with when it has all of a plan: of what is done on a node, the version, whether Version was applied to it
// or not, and the digests of Secrets by name, of which those with ignoreUpdates and those that the plan does not mount do not matter. 56 characters.
func Hash(work *v1.NodeWork, version string, secrets map[string]string) (string, error) {
	matter := map[string]string{}
	for _, s := range work.Secrets {
		if content, known := secrets[s.Name]; known && !s.IgnoreUpdates {
			matter[s.Name] = content
		}
	}
	return digest(work, Version(version), matter)
}

// Revision is of all that makes a member begin anew: the hash, and which nodes are selected.
func Revision(hash string, pace *v1.PlanPace) (string, error) { return digest(hash, pace.NodeSelector) }

// digest of the JSON of parts, which is canonical: Go writes fields in their order and the keys of maps sorted.
func digest(parts ...any) (string, error) {
	raw, err := json.Marshal(parts)
	if err != nil {
		return "", fmt.Errorf("make hash: %w", err)
	}
	sum := sha256.Sum224(raw)
	return hex.EncodeToString(sum[:]), nil
}
