/**
 * Names of the optional properties of T that may be left out and may not be undefined (exactOptionalPropertyTypes): with
 * `never` for all, options that are built from others, { channel: given.channel }, need no case of their own.
 */
export type Refusing<T> = T extends unknown
  ? {
      [K in keyof T]-?: object extends Pick<T, K>
        ? Record<K, undefined> extends Pick<T, K>
          ? never
          : K
        : never
    }[keyof T]
  : never
