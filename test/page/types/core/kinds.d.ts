export const kinds: string[];
