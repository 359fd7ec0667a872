//! What a layer can be built for: one shape, or shapes in an arrangement.

use plimsoll_tensor::{IntoShape, Nested, Result, Shape};

/// What a layer can be built for: anything that is a shape, a tuple of such, or names and such.
pub trait IntoShapes {
    /// The shapes.
    ///
    /// # Errors
    /// A shape with too many dimensions.
    fn into_shapes(self) -> Result<Nested<Shape>>;
}

macro_rules! one_shape {
    ($($type:ty),*) => {$(
        impl IntoShapes for $type {
            fn into_shapes(self) -> Result<Nested<Shape>> {
                self.into_shape().map(Nested::One)
            }
        }
    )*};
}

one_shape!(Shape, &Shape, (), usize, &[usize], Vec<usize>, &Vec<usize>);

impl<const N: usize> IntoShapes for [usize; N] {
    fn into_shapes(self) -> Result<Nested<Shape>> {
        self.into_shape().map(Nested::One)
    }
}

impl<const N: usize> IntoShapes for &[usize; N] {
    fn into_shapes(self) -> Result<Nested<Shape>> {
        self.into_shape().map(Nested::One)
    }
}

impl IntoShapes for Nested<Shape> {
    fn into_shapes(self) -> Result<Nested<Shape>> {
        Ok(self)
    }
}

impl IntoShapes for &Nested<Shape> {
    fn into_shapes(self) -> Result<Nested<Shape>> {
        Ok(self.clone())
    }
}

impl<S: Into<String>, V: IntoShapes, const N: usize> IntoShapes for [(S, V); N] {
    fn into_shapes(self) -> Result<Nested<Shape>> {
        let fields = self.into_iter().map(|(name, shapes)| Ok((name.into(), shapes.into_shapes()?)));
        Ok(Nested::Named(fields.collect::<Result<_>>()?))
    }
}

macro_rules! shapes {
    ($($name:ident),*) => {
        impl<$($name: IntoShapes),*> IntoShapes for ($($name,)*) {
            #[expect(non_snake_case, reason = "the parts are called as their types")]
            fn into_shapes(self) -> Result<Nested<Shape>> {
                let ($($name,)*) = self;
                Ok(Nested::Tuple(vec![$($name.into_shapes()?),*]))
            }
        }
    };
}

shapes!(A, B);
shapes!(A, B, C);
shapes!(A, B, C, D);
