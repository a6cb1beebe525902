// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ApprovalPolicy determines whether a wave requires approval.
// +kubebuilder:validation:Enum=None;Required
type ApprovalPolicy string

// Values of ApprovalPolicy.
const (
	ApprovalNone     ApprovalPolicy = "None"
	ApprovalRequired ApprovalPolicy = "Required"
)

// Approval is a user's approval of one revision of a Plan or Baseline for one wave.
type Approval struct {
	// wave is the name of the wave. It must be 1 to 63 characters long.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Wave string `json:"wave"`

	// revision is the approved revision, as shown in status.waves. It is a digest of the object's UID and of its spec,
	// except for the fields paused, approvals and overrides. For a Plan, the digest also covers the version, and the
	// content of Secrets that do not set ignoreUpdates. For a Baseline, it also covers the objects. The approval is not
	// valid for any other revision.
	// +required
	// +kubebuilder:validation:MaxLength=56
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{56}$`
	Revision string `json:"revision"`

	// approvedBy is the name of the user who approves the revision. It must be the name of the user who adds the entry,
	// and must be 1 to 512 characters long.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	ApprovedBy string `json:"approvedBy"`
}

// WaveApproval describes whether a wave that requires approval has been approved.
type WaveApproval struct {
	// revision is the revision to approve. While the version or a Secret of a Plan cannot be resolved, it is the approved
	// revision, or empty if no revision has been approved.
	// +optional
	Revision string `json:"revision,omitempty"`
	// approvedBy is the user who has approved the revision. It is empty until the revision is approved.
	// +optional
	ApprovedBy string `json:"approvedBy,omitempty"`
	// approvedAt is the time when Drover first observed the approval.
	// +optional
	ApprovedAt *metav1.Time `json:"approvedAt,omitempty"`
}

// ReasonWaveApproved is the reason of the event for an approved wave.
const ReasonWaveApproved = "WaveApproved"
