// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/untrusted"
)

// Keys in the Secret "<cluster>-registration".
const (
	// KeyToken is the key of the join token.
	KeyToken = "token"
	// KeyManifestURL is the key of the URL of the agent's manifest. No other credential is needed to fetch it. The URL
	// works until the token in it has been used or has expired.
	KeyManifestURL = "manifest-url"
	// KeyCommand is the key of the command that an administrator runs in the member.
	KeyCommand = "command"
	// KeyManifest is the key of the agent's manifest.
	KeyManifest = "manifest.yaml"
)

// Annotations on the Secret "<cluster>-registration".
const (
	annotationTokenHash    = v1.Group + "/token-hash"
	annotationTokenCreated = v1.Group + "/token-created"
	annotationTokenUsed    = v1.Group + "/token-used"
)

// tokenJoining, followed by a time, is the value of annotationTokenUsed while an agent is joining. After the join,
// the value is the hash of the token.
const tokenJoining = "joining "

// Keys in the Secret "<cluster>-agent". The values are not secret. They are stored in a Secret, because a user who can
// write them can decide which cluster becomes the member.
const (
	keyPublicKey  = "public-key"
	keyClusterUID = "cluster-uid"
	keyTokenHash  = "token-hash"
	keyOwnerUID   = "owner-uid"
	keyJoined     = "joined"
	// keyFormerOwner exists only in the Secret of an adopted agent.
	keyFormerOwner = "former-owner-uid"
)

// RegistrationSecret returns the name of the Secret that contains a Cluster's join token.
func RegistrationSecret(cluster types.NamespacedName) types.NamespacedName {
	if host, ok := protocol.HostOf(cluster.Name); ok {
		return types.NamespacedName{Namespace: cluster.Namespace, Name: host + v1.HostJoinSecretSuffix}
	}
	return types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name + v1.RegistrationSecretSuffix}
}

// AgentSecret returns the name of the Secret that contains the identity of a Cluster's agent.
func AgentSecret(cluster types.NamespacedName) types.NamespacedName {
	if host, ok := protocol.HostOf(cluster.Name); ok {
		return types.NamespacedName{Namespace: cluster.Namespace, Name: host + v1.HostAgentSecretSuffix}
	}
	return types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name + v1.AgentSecretSuffix}
}

func secretName(cluster string) string {
	namespace, name, _ := strings.Cut(cluster, "/")
	return RegistrationSecret(types.NamespacedName{Namespace: namespace, Name: name}).Name
}

// ReadToken reads the join token from a Cluster's registration Secret. ttl comes from the Cluster's spec. If the Secret
// lacks Drover's annotations, the token counts as expired, so the function fails closed.
func ReadToken(secret *corev1.Secret, ttl time.Duration) Token {
	value := string(secret.Data[KeyToken])
	created, err := time.Parse(time.RFC3339, secret.Annotations[annotationTokenCreated])
	if err != nil || secret.Annotations[annotationTokenHash] != HashToken(value) {
		created = time.Time{}
	}
	used := secret.Annotations[annotationTokenUsed]
	claimed, _ := time.Parse(time.RFC3339, strings.TrimPrefix(used, tokenJoining)) // a hash cannot be parsed as a time
	return Token{
		Value:   value,
		Created: created,
		TTL:     ttl,
		Used:    used == HashToken(value),
		Claimed: claimed,
	}
}

// TokenCreated returns the time when the join token in a Cluster's registration Secret was created. If the Secret does
// not contain this time, TokenCreated returns the time when the Secret was created.
func TokenCreated(secret metav1.Object) time.Time {
	if created, err := time.Parse(time.RFC3339, secret.GetAnnotations()[annotationTokenCreated]); err == nil {
		return created
	}
	return secret.GetCreationTimestamp().Time
}

// maxCached is the maximum size of a Secret value that the manager keeps in memory, in bytes. The longest value that
// the manager needs is a hash or a token.
const maxCached = 1 << 10

// maxMark is the maximum size of an annotation that the manager keeps in memory, in bytes. The annotations that the
// manager needs contain a hash or a time.
const maxMark = 256

// CachedKinds returns the values of v1.LabelSecretKind for Secrets that the manager keeps in memory. The list is fixed
// because users can set the label to arbitrary values.
func CachedKinds() []string {
	return []string{v1.SecretKindRegistration, v1.SecretKindAgent, v1.SecretKindHostJoin, v1.SecretKindHostAgent,
		v1.SecretKindHostInstructions}
}

func cachedMetadata() untrusted.Metadata {
	return untrusted.Metadata{
		Annotations: map[string]int{
			annotationTokenHash: maxMark, annotationTokenCreated: maxMark, annotationTokenUsed: maxMark,
		},
		Labels: []string{v1.LabelSecretKind, v1.LabelCluster, v1.LabelHost, v1.LabelManagedBy}, Owners: []string{v1.Group},
	}
}

// keyContent is the key in StringData under which Trim stores a digest of a registration Secret's content. Trim removes
// the content itself, because only users read it, and ten thousand manifests would take up most of the manager's
// memory. The API server never sends StringData, so no other client can have set it.
const keyContent = "content-digest"

// Trim is a cache transform that removes everything from a Secret except the fields that are read from the cache. It
// modifies and returns the Secret. It treats all Secrets with Drover's label in the same way, because users can also
// create such Secrets. It is idempotent.
func Trim(object any) (any, error) {
	secret, ok := object.(*corev1.Secret)
	if !ok {
		return object, nil
	}
	cachedMetadata().Trim(secret)
	var keep []string
	switch secret.Labels[v1.LabelSecretKind] {
	case v1.SecretKindRegistration, v1.SecretKindHostJoin:
		keep = []string{KeyToken}
		secret.StringData = map[string]string{keyContent: contentOf(secret)}
	case v1.SecretKindAgent, v1.SecretKindHostAgent:
		keep = []string{keyPublicKey, keyClusterUID, keyTokenHash, keyOwnerUID, keyJoined, keyFormerOwner}
	}
	data := make(map[string][]byte, len(keep))
	for _, key := range keep {
		if value, ok := secret.Data[key]; ok && len(value) <= maxCached {
			data[key] = value
		}
	}
	secret.Data = data
	return secret, nil
}

// contentOf returns the digest of a registration Secret's content, before or after Trim.
func contentOf(secret *corev1.Secret) string {
	if digest, trimmed := secret.StringData[keyContent]; trimmed {
		return digest
	}
	return contentDigest(secret.Data)
}

// contentDigest returns a digest of a registration Secret's content, except the token.
func contentDigest(data map[string][]byte) string {
	hash := sha256.New()
	for _, key := range []string{KeyManifestURL, KeyCommand, KeyManifest} {
		value, ok := data[key]
		fmt.Fprintf(hash, "%s %t %d\n", key, ok, len(value))
		_, _ = hash.Write(value) // Write never returns an error
	}
	return string(hash.Sum(nil))
}

// UpToDate reports whether a registration Secret, either complete or trimmed, has the content that would be applied.
func UpToDate(secret *corev1.Secret, want *corev1ac.SecretApplyConfiguration) bool {
	return bytes.Equal(secret.Data[KeyToken], want.Data[KeyToken]) &&
		contentOf(secret) == contentDigest(want.Data) &&
		labels.ValidatedSetSelector(want.Annotations).Matches(labels.Set(secret.Annotations)) &&
		labels.ValidatedSetSelector(want.Labels).Matches(labels.Set(secret.Labels))
}

// Ours reports whether Drover created a Secret for a Cluster, or for an earlier Cluster with the same name. Any other
// Secret with that name belongs to a user and is neither adopted nor overwritten.
func Ours(secret *corev1.Secret, cluster, kind string) bool {
	return owned.Marks{Type: corev1.SecretTypeOpaque, Labels: ownLabels(cluster, kind)}.Has(secret)
}

// Owned reports whether Drover created a registration Secret for this Cluster or Host rather than for an earlier object
// with the same name. The content of any other Secret must not be sent or applied anywhere.
func Owned(secret *corev1.Secret, owner client.Object) bool {
	return Ours(secret, memberName(owner).Name, v1.SecretKindRegistration) && owned.By(secret, owner.GetUID())
}

// Foreign explains why a Secret is not the Secret that Drover created for a Cluster or Host. It returns "" if Drover
// created the Secret. Callers that find a Secret by its name must call Foreign before they apply or show the Secret's
// content, because a user who can create Secrets may have created a Secret with that name.
func Foreign(secret *corev1.Secret, owner client.Object, kind string) string {
	member := memberName(owner)
	want := ownLabels(member.Name, kind)
	for _, label := range slices.Sorted(maps.Keys(want)) {
		value := want[label]
		if found, ok := secret.Labels[label]; !ok {
			return fmt.Sprintf("it lacks the label %s=%s of Drover's Secret", label, value)
		} else if found != value {
			return fmt.Sprintf("its label %s has the value %q, but Drover's Secret has %s", label, found, value)
		}
	}
	var owners []string
	for _, o := range secret.OwnerReferences {
		if o.UID == owner.GetUID() {
			return ""
		}
		owners = append(owners, fmt.Sprintf("%q", protocol.Cut(string(o.UID), 64)))
	}
	found := "it belongs to no object"
	if len(owners) > 0 {
		found = "it belongs to the object with the UID " + strings.Join(owners[:min(len(owners), 4)], ", ")
	}
	return fmt.Sprintf("%s, but Drover's Secret belongs to the %s, which has the UID %s", found, kindOf(owner),
		owner.GetUID())
}

// ownLabels returns the labels that mark a Secret of the given kind as belonging to a Cluster or Host with the given
// member name.
func ownLabels(member, kind string) map[string]string {
	if host, ok := protocol.HostOf(member); ok {
		kinds := map[string]string{
			v1.SecretKindRegistration: v1.SecretKindHostJoin, v1.SecretKindAgent: v1.SecretKindHostAgent,
		}
		return map[string]string{v1.LabelHost: host, v1.LabelSecretKind: kinds[kind]}
	}
	return map[string]string{v1.LabelCluster: member, v1.LabelSecretKind: kind}
}

// Content is the content of a registration Secret apart from the token.
type Content struct {
	ManifestURL string
	Command     string
	Manifest    []byte
}

// ApplySecret returns the registration Secret to apply for a Cluster.
func ApplySecret(cluster client.Object, token Token, content Content) *corev1ac.SecretApplyConfiguration {
	annotations := map[string]string{
		annotationTokenHash:    HashToken(token.Value),
		annotationTokenCreated: token.Created.UTC().Format(time.RFC3339),
	}
	if token.Used {
		annotations[annotationTokenUsed] = HashToken(token.Value)
	}
	member := memberName(cluster)
	name := RegistrationSecret(member)
	return corev1ac.Secret(name.Name, name.Namespace).
		WithLabels(secretLabels(member.Name, v1.SecretKindRegistration)).
		WithAnnotations(annotations).
		WithOwnerReferences(ownerReference(cluster)).
		WithType(corev1.SecretTypeOpaque).
		WithData(map[string][]byte{
			KeyToken:       []byte(token.Value),
			KeyManifestURL: []byte(content.ManifestURL),
			KeyCommand:     []byte(content.Command),
			KeyManifest:    content.Manifest,
		})
}

// ApplyHostSecret returns the Secret to apply for a Host. It contains the Host's join token and command.
func ApplyHostSecret(host *v1.Host, token Token, command string) *corev1ac.SecretApplyConfiguration {
	secret := ApplySecret(host, token, Content{})
	secret.Data = map[string][]byte{KeyToken: []byte(token.Value), KeyCommand: []byte(command)}
	return secret
}

// AgentIdentity identifies the agent of a Cluster.
type AgentIdentity struct {
	// PublicKey verifies the agent's connect tokens.
	PublicKey ed25519.PublicKey
	// ClusterUID is the UID of the kube-system namespace in the member.
	ClusterUID string
	// TokenHash is the hash of the join token that the agent used.
	TokenHash string
	// OwnerUID is the UID of the Cluster object that the agent joined, or of the Cluster object that adopted the
	// agent.
	OwnerUID types.UID
	// FormerOwner is the UID of the Cluster object that an adopted agent originally joined. The agent's tokens still
	// contain this UID. FormerOwner is empty for other agents.
	FormerOwner types.UID
	// Joined is the time when the agent joined.
	Joined time.Time
}

// knownAs reports whether the agent may refer to its Cluster object by uid.
func (id *AgentIdentity) knownAs(uid string) bool {
	return uid != "" && (uid == string(id.OwnerUID) || uid == string(id.FormerOwner))
}

// ReadIdentity reads the identity in a Cluster's agent Secret.
func ReadIdentity(secret *corev1.Secret) (*AgentIdentity, error) {
	key, err := base64.StdEncoding.DecodeString(string(secret.Data[keyPublicKey]))
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("secret %s/%s: %s is not an Ed25519 public key in base64", secret.Namespace, secret.Name,
			keyPublicKey)
	}
	joined, _ := time.Parse(time.RFC3339, string(secret.Data[keyJoined])) // the zero time counts as a long time ago
	return &AgentIdentity{
		Joined:     joined,
		PublicKey:  key,
		ClusterUID: string(secret.Data[keyClusterUID]),
		TokenHash:  string(secret.Data[keyTokenHash]),
		OwnerUID:   types.UID(secret.Data[keyOwnerUID]),

		FormerOwner: types.UID(secret.Data[keyFormerOwner]),
	}, nil
}

// WriteIdentity writes an identity into a Cluster's agent Secret. The Secret may be new.
func WriteIdentity(secret *corev1.Secret, cluster client.Object, id AgentIdentity) {
	member := memberName(cluster)
	name := AgentSecret(member)
	secret.Namespace, secret.Name = name.Namespace, name.Name
	secret.Labels = secretLabels(member.Name, v1.SecretKindAgent)
	secret.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1.GroupVersion.String(), Kind: kindOf(cluster), Name: cluster.GetName(), UID: cluster.GetUID(),
	}}
	secret.Type = corev1.SecretTypeOpaque
	secret.Data = map[string][]byte{
		keyPublicKey:  []byte(base64.StdEncoding.EncodeToString(id.PublicKey)),
		keyClusterUID: []byte(id.ClusterUID),
		keyTokenHash:  []byte(id.TokenHash),
		keyOwnerUID:   []byte(id.OwnerUID),
		keyJoined:     []byte(id.Joined.UTC().Format(time.RFC3339)),
	}
	if id.FormerOwner != "" {
		secret.Data[keyFormerOwner] = []byte(id.FormerOwner)
	}
}

func secretLabels(cluster, kind string) map[string]string {
	labels := ownLabels(cluster, kind)
	labels[v1.LabelManagedBy] = v1.ManagedBy
	return labels
}

func ownerReference(cluster client.Object) *metav1ac.OwnerReferenceApplyConfiguration {
	return metav1ac.OwnerReference().
		WithAPIVersion(v1.GroupVersion.String()).
		WithKind(kindOf(cluster)).
		WithName(cluster.GetName()).
		WithUID(cluster.GetUID())
}
